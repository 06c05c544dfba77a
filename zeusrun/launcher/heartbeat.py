"""Keeps the lease of a running trial in a shared history: a thread that sends heartbeats."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from zeusrun.energy.power_trace import read_power
from zeusrun.errors import HistoryError, ZeusrunError
from zeusrun.history.base import HEARTBEAT_S, UnavailableError
from zeusrun.jobfile.secrets import is_secret_name
from zeusrun.launcher.redact import copy_job
from zeusrun.launcher.rundir.layout import ask_to_cancel, read_cancel, read_live
from zeusrun.launcher.rundir.logs import read_last_lines
from zeusrun.redaction import mask_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.launcher.begin import Begun
    from zeusrun.launcher.context import Submission

_AGAIN_S = 5.0  # after a heartbeat that failed
_POWER_POINTS = 240  # of a trace for the page: about 15 KB
_LOG_LINES, _LOG_CHARACTERS = 40, 300  # of the log of rank 0: about 12 KB at most


class HeartbeatThread:
    """Renews the lease of a trial every ``HEARTBEAT_S`` while it is entered.

    First it sends the job file, without secrets, and what the machine reports of itself. Each
    heartbeat carries the state of the run and the end of its log, without secrets, and then
    delivers what waits in the spool. While it fails, it is sent more often. If somebody has asked
    for it, the run is cancelled. Nothing else that happens here ends the training, or the thread.
    """

    def __init__(self, submission: Submission, begun: Begun) -> None:
        """Prepare; nothing is sent yet."""
        self._submission, self._history = submission, submission.history
        self._trial, self._paths = begun.trial, begun.paths
        inherited = submission.environment.items()  # which the script may print
        secrets = [value for name, value in inherited if is_secret_name(name)]
        self._mask = mask_values([*begun.mask.pieces, *secrets])
        self._ended = threading.Event()
        self._has_warned = False
        self._thread = threading.Thread(target=self._run, name="zeusrun-heartbeat", daemon=True)

    def __enter__(self) -> None:
        """Start the thread."""
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """End the thread, and send the power trace of the run."""
        self._ended.set()
        self._thread.join()
        with suppress(HistoryError, ValueError):  # the page then has no curve
            if (trace := read_power(self._paths.power, _POWER_POINTS)) is not None:
                self._history.keep_trace(self._trial.uuid, trace.to_json())

    def _run(self) -> None:
        well = self._try(self._send_settings)
        while not self._ended.wait(HEARTBEAT_S if well else _AGAIN_S):
            well = self._try(self._beat)

    def _try(self, step: Callable[[], None]) -> bool:
        """Return whether a step succeeded; the first failure but an outage is shown."""
        try:
            step()
        except UnavailableError:  # its result is delivered later
            return False
        except Exception as error:  # noqa: BLE001 - the next heartbeat may succeed
            if not self._has_warned:
                self._has_warned = True
                what = str(error) if isinstance(error, ZeusrunError) else repr(error)
                self._history.tell(f"a heartbeat of {self._trial.trial} failed: {what}")
            return False
        return True

    def _send_settings(self) -> None:
        job, host = self._trial.job, self._submission.host
        with suppress(HistoryError, ValueError):  # the next run says it again
            self._history.trials(job, 0)  # for the copy: an outage then does not hide this run
            self._history.keep_settings(job, copy_job(self._submission.spec).decode())
            self._history.report_host(host, self._submission.describe_machine())

    def _beat(self) -> None:
        live = read_live(self._paths)
        if live is not None and not live.is_of(self._trial):
            live = None
        log = read_last_lines(self._paths.rank_log(0), self._mask, _LOG_LINES, _LOG_CHARACTERS)
        known = None if live is None else {**live.to_json(), "log": log}
        is_cancelled = self._history.renew(self._trial.trial, known)
        if is_cancelled and read_cancel(self._paths) is None:
            ask_to_cancel(self._paths)
