"""Runs the schedules in the foreground, for containers: one tick a minute."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING

from zeusrun.clock import read_clock
from zeusrun.errors import BusyError
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.schedule.occurrence import PERIOD_S
from zeusrun.schedule.tick import start_due

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.launcher.processes.background import Detached
    from zeusrun.schedule.store import Schedules

_NAP_S = 0.2  # a signal is handled within this time


def run_daemon(schedules: Schedules, tell: Callable[[str], None]) -> int:
    """Start due jobs every minute until a signal comes; then end what runs, and wait for it.

    Args:
        schedules: Schedules of the user.
        tell: Prints a sentence.

    Returns:
        The signal.

    Raises:
        BusyError: If a daemon runs already.
    """
    lock = schedules.lock(".daemon.lock")  # no job has this name
    if not lock.acquire():
        raise BusyError(f"a daemon already runs these schedules ({schedules.directory})")
    running: list[tuple[str, Detached]] = []
    try:
        with CaughtSignals() as signals:
            while not signals.received:
                now = read_clock()
                running = [each for each in running if not _has_ended(*each, tell)]
                for schedule, process in start_due(schedules, now, tell):
                    log = schedules.log(schedule.job)
                    tell(f"{schedule.job} has started; its output is in {log}")
                    running.append((schedule.job, process))
                _sleep(PERIOD_S - now % PERIOD_S, signals)
            for _, process in running:
                process.send_signal(signal.SIGTERM)  # preempted: the next run continues it
            for job, process in running:
                process.wait()
                _has_ended(job, process, tell)
            return signals.received[0]
    finally:
        with contextlib.suppress(OSError):
            schedules.heartbeat.unlink(missing_ok=True)  # nothing runs the schedules any more
        lock.release()


def _has_ended(job: str, process: Detached, tell: Callable[[str], None]) -> bool:
    code = process.poll()
    if code is not None:
        tell(f"{job} has ended with exit code {code}")
    return code is not None


def _sleep(seconds: float, signals: CaughtSignals) -> None:
    until_t = time.monotonic() + seconds
    while not signals.received and (left_s := until_t - time.monotonic()) > 0:
        time.sleep(min(_NAP_S, left_s))
