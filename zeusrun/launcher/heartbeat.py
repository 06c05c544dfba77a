"""Keeps the lease of a running trial in a shared history: a thread that sends heartbeats."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

from zeusrun.errors import HistoryError
from zeusrun.history.base import HEARTBEAT_S
from zeusrun.history.registry import shared_of
from zeusrun.launcher.rundir.record import read_live

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from zeusrun.history.base import History
    from zeusrun.history.shared.store import SharedHistory
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.trial import Trial


def hold_lease(history: History, trial: Trial, paths: RunPaths) -> AbstractContextManager[object]:
    """Keep the lease of a trial until the end of the block, if its history is shared."""
    shared = shared_of(history, trial.job)
    return nullcontext() if shared is None else Heartbeat(shared, trial, paths)


class Heartbeat:
    """Renews the lease of a trial every ``HEARTBEAT_S`` while it is entered.

    Each heartbeat carries the state of the run, and delivers what waits in the spool. While the
    server is away, nothing happens until the next one.
    """

    def __init__(self, history: SharedHistory, trial: Trial, paths: RunPaths) -> None:
        """Prepare; nothing is sent yet."""
        self._history, self._trial, self._paths = history, trial, paths
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="zeusrun-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        """Start the thread."""
        self._thread.start()
        return self

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
            while not self._ended.wait(HEARTBEAT_S):
                self._beat()
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            self._error = error

    def _beat(self) -> None:
        live = read_live(self._paths)
        if live is not None and not live.is_of(self._trial):
            live = None
        try:
            self._history.renew(self._trial.trial, None if live is None else live.to_json())
        except (HistoryError, ValueError):
            return  # the server is away, or has lost the trial: its result is delivered later
