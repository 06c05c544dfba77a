"""What the pods of a job print, and how the job is: a thread reads both."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING

from zeusrun.clock import read_clock
from zeusrun.errors import ZeusrunError
from zeusrun.run_on.kubernetes.client import (
    ApiError,
    KubernetesJob,
    Pod,
    follow_log,
    read_job,
)

if TYPE_CHECKING:
    from typing_extensions import Self

_AGAIN_S = 2.0
_TRIES = 3  # if an error may be one for ever
_MARGIN_S = 300.0  # by which clocks may differ, if a log is opened again
_CLOSE_S = 1.0
_ANSWER_S = 60.0
_AT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)")


class PodOutput:
    """The output of the head of a job, which may run in several pods, one after the other.

    A context manager, which reads in a thread. See ``Source`` in ``commands/follow.py``.
    """

    def __init__(self, name: str, *, follow: bool = True) -> None:
        """Prepare; nothing is asked yet. Without ``follow``, what there is now is read."""
        self.name, self._follows = name, follow
        self.job: KubernetesJob | None = None  # as it was described last
        self.error: ZeusrunError | None = None  # why nothing is known of it
        self._lines: deque[str] = deque()
        self._stopped, self._answered = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="zeusrun-pods", daemon=True)
        self._uid, self._last, self._at_last = "", (0.0, ""), 0  # the pod, and where it is read

    def __enter__(self) -> Self:
        self._thread.start()
        self._answered.wait(_ANSWER_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(_CLOSE_S)  # a read of the network may last longer

    def read_lines(self, *, final: bool = False) -> list[str]:
        """Return the lines that have come since the last call; raises ``LaunchError``."""
        if final and self.error is not None and not (self.job and self.job.has_ended):
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
            began_t = time.monotonic()
            try:
                job = self.job = read_job(self.name)
                self._answered.set()
                if job.pod is not None and job.pod.begun:
                    self._follow(job.pod)
                self.error = None
                if job.has_ended or not self._follows:
                    return
            except ZeusrunError as error:
                self.error = error
                self._answered.set()
                code = error.code if isinstance(error, ApiError) else 0
                # It may be for ever: the log of a job that has ended is gone, for example.
                has_ended = self.job is not None and self.job.has_ended
                left -= code in {0, 401, 403} or has_ended or not self._follows
            self._stopped.wait(max(0.0, began_t + _AGAIN_S - time.monotonic()))

    def _follow(self, pod: Pod) -> None:
        """Take the lines of a pod until it ends or is silent; some come a second time."""
        if pod.uid != self._uid:
            self._uid, self._last, self._at_last = pod.uid, (0.0, ""), 0
        since_s, again = None, self._at_last
        if again:
            since_s = max(1, math.ceil(read_clock() - self._last[0] + _MARGIN_S))
        for at, text in follow_log(self.name, pod, since_s, follow=self._follows):
            stamp = _parse(at) or self._last
            if again and stamp <= self._last:  # it is known
                again -= stamp == self._last
                continue
            again = 0  # the clock of a node may be set back
            self._at_last = self._at_last + 1 if stamp == self._last else 1
            self._last = stamp
            self._lines.append(text)
            if self._stopped.is_set():
                return


def _parse(at: str) -> tuple[float, str] | None:
    """Return a time of a log in whole Unix seconds and their fraction, which have its order."""
    if (match := _AT.fullmatch(at)) is None:
        return None
    zone = match[3].replace("Z", "+00:00")
    return datetime.fromisoformat(match[1] + zone).timestamp(), (match[2] or "").ljust(9, "0")
