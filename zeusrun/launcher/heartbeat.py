"""Keeps the lease of a running trial in a shared history: a thread that sends heartbeats."""

from __future__ import annotations

import threading
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from zeusrun.energy.power_trace import read_power
from zeusrun.errors import HistoryError
from zeusrun.history.base import HEARTBEAT_S
from zeusrun.history.registry import shared_of
from zeusrun.launcher.redact import copy_job
from zeusrun.launcher.rundir.record import read_live

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from zeusrun.history.base import History
    from zeusrun.history.shared.store import SharedHistory
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.trial import Trial

_POWER_POINTS = 240  # of a trace for the page: about 15 KB


def hold_lease(
    submission: Submission, trial: Trial, paths: RunPaths
) -> AbstractContextManager[object]:
    """Keep the lease of a trial until the end of the block, if its history is shared."""
    shared = shared_of(submission.history, trial.job)
    return nullcontext() if shared is None else Heartbeat(submission, shared, trial, paths)


def keep_power(history: History, trial: Trial, paths: RunPaths) -> None:
    """Send the power of a trial that has ended to a shared history, or let it wait."""
    shared = shared_of(history, trial.job)
    trace = None if shared is None else read_power(paths.power, _POWER_POINTS)
    if shared is not None and trace is not None:
        with suppress(HistoryError, ValueError):  # the page then has no curve
            shared.keep_trace(trial.uuid or trial.trial, trace.to_json())


class Heartbeat:
    """Renews the lease of a trial every ``HEARTBEAT_S`` while it is entered.

    First it sends the job file, without secrets, and what the machine reports of itself. Each
    heartbeat carries the state of the run, and delivers what waits in the spool. While the server
    is away, nothing happens until the next one.
    """

    def __init__(
        self, submission: Submission, history: SharedHistory, trial: Trial, paths: RunPaths
    ) -> None:
        """Prepare; nothing is sent yet."""
        self._submission, self._history = submission, history
        self._trial, self._paths = trial, paths
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="zeusrun-heartbeat", daemon=True)

    def __enter__(self) -> None:
        """Start the thread."""
        self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the thread; raise what went wrong in it, unless something else has."""
        self._ended.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        try:
            self._introduce()
            while not self._ended.wait(HEARTBEAT_S):
                self._beat()
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            self._error = error

    def _introduce(self) -> None:
        host, facts = self._submission.host, self._submission.describe_machine
        with suppress(HistoryError, ValueError):  # the next run says it again
            self._history.keep_settings(self._trial.job, copy_job(self._submission.spec).decode())
            self._history.report_host(host, facts())

    def _beat(self) -> None:
        live = read_live(self._paths)
        if live is not None and not live.is_of(self._trial):
            live = None
        # If the server is away, or has lost the trial, its result is delivered later.
        with suppress(HistoryError, ValueError):
            self._history.renew(self._trial.trial, None if live is None else live.to_json())
