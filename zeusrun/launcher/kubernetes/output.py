"""What the pods of a job print, and how the job is: read by a thread, which watches and follows."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from zeusrun.errors import LaunchError
from zeusrun.launcher.kubernetes.client import (
    ApiError,
    KubernetesJob,
    Pod,
    follow_log,
    read_job,
    watch_pod,
)

if TYPE_CHECKING:
    from typing_extensions import Self

_WATCH_S = 20  # then the job is read again: not all of its changes are those of a pod
_AGAIN_S = 1.0
_TRIES = 3  # if an error may be one for ever
_MARGIN_S = 5.0  # of the clocks, if a log is opened again
_CLOSE_S = 1.0
_ANSWER_S = 60.0
_AT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?")


class PodOutput:
    """The output of the head of a job, which may run in several pods, one after the other.

    A context manager, which reads in a thread. See ``Source`` in ``commands/follow.py``.
    """

    def __init__(self, name: str, *, follow: bool = True) -> None:
        """Prepare; nothing is asked yet. Without ``follow``, what there is now is read."""
        self.name, self._follows = name, follow
        self.job: KubernetesJob | None = None  # as it was described last
        self.error: LaunchError | None = None  # why nothing is known of it
        self._lines: deque[str] = deque()
        self._stopped, self._answered = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="zeusrun-pods", daemon=True)
        self._uid, self._last, self._at_last = "", ("", ""), 0  # the pod, and where it is read
        self._read_t: float | None = None  # when its last line came

    def __enter__(self) -> Self:
        self._thread.start()
        self._answered.wait(_ANSWER_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(_CLOSE_S)  # a read of the network may last longer

    def read_lines(self, *, final: bool = False) -> list[str]:
        """Return the lines that have come since the last call; raises ``LaunchError``."""
        if final and self.error is not None and self.job is None:
            raise self.error
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def read_job(self) -> KubernetesJob | None:
        """Return the job as it was a moment ago; ``None``: no response."""
        return self.job

    def has_ended(self) -> bool:
        """Whether nothing more comes."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        left = _TRIES
        while left and not self._stopped.is_set():
            try:
                job = self.job = read_job(self.name)
                self._answered.set()
                if job.pod is not None and job.pod.begun:
                    self._follow(job.pod)
                self.error = None
                if job.has_ended or not self._follows:
                    return
                if job.pod is None or not job.pod.begun:
                    self._wait_for_change(job)
                elif job.pod.exit_code is not None:  # a controller is about to act on it
                    self._stopped.wait(_AGAIN_S)
            except LaunchError as error:
                self.error = error
                self._answered.set()
                is_refused = isinstance(error, ApiError) and error.code in {401, 403}
                # The log of a job that has ended may be gone.
                has_ended = self.job is not None and self.job.has_ended
                left -= is_refused or has_ended or not self._follows
                self._stopped.wait(_AGAIN_S)

    def _wait_for_change(self, job: KubernetesJob) -> None:
        began_t = time.monotonic()
        for pod in watch_pod(self.name, job.kind, _WATCH_S):
            if pod != job.pod or self._stopped.is_set():
                return
        if time.monotonic() < began_t + _AGAIN_S:  # it was refused, or cut off
            self._stopped.wait(_AGAIN_S)

    def _follow(self, pod: Pod) -> None:
        """Take the lines of a pod until it ends or is silent; some come a second time."""
        if pod.uid != self._uid:
            self._uid, self._last, self._at_last, self._read_t = pod.uid, ("", ""), 0, None
        since_s = None
        if self._read_t is not None:
            since_s = math.ceil(time.monotonic() - self._read_t + _MARGIN_S)
        again = self._at_last
        for at, text in follow_log(self.name, pod, since_s, follow=self._follows):
            self._read_t = time.monotonic()
            stamp = _parse(at)
            if stamp < self._last:
                continue
            if stamp == self._last and again > 0:
                again -= 1
                continue
            self._at_last = self._at_last + 1 if stamp == self._last else 1
            self._last = stamp
            self._lines.append(text)
            if self._stopped.is_set():
                return


def _parse(at: str) -> tuple[str, str]:
    """Return a time of a log as texts that have its order: seconds, and their fraction."""
    match = _AT.match(at)
    return (match[1], (match[2] or "").ljust(9, "0")) if match else ("", "")
