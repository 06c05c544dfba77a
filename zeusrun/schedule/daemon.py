"""The schedules in the foreground, for containers: a tick every minute, and an end that is told."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from zeusrun.clock import read_clock
from zeusrun.errors import BusyError
from zeusrun.launcher.signals import CaughtSignals
from zeusrun.schedule.fire import PERIOD_S
from zeusrun.schedule.tick import start_due

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.launcher.process_beside import Detached
    from zeusrun.schedule.store import Schedules

_NAP_S = 0.2  # a signal is heard so soon


def run_daemon(schedules: Schedules, tell: Callable[[str], None]) -> int:
    """Start what is due every minute until a signal comes; then end what runs, and wait for it.

    Args:
        schedules: Of the user.
        tell: Takes a sentence for people.

    Returns:
        The signal.

    Raises:
        BusyError: If there is one already.
    """
    lock = schedules.lock(".daemon.lock")  # no job has this name
    if not lock.acquire():
        raise BusyError(f"a daemon runs these schedules already ({schedules.directory})")
    running: list[Detached] = []
    try:
        with CaughtSignals() as signals:
            while not signals.received:
                now = read_clock()
                running = [process for process in running if process.poll() is None]
                for schedule, process in start_due(schedules, now, tell):
                    log = schedules.log(schedule.job)
                    tell(f"{schedule.job} begins; its output is in {log}")
                    running.append(process)
                _sleep(PERIOD_S - now % PERIOD_S, signals)
            for process in running:
                process.send_signal(signal.SIGTERM)  # preempted: it goes on the next time
            for process in running:
                process.wait()
            return signals.received[0]
    finally:
        lock.release()


def _sleep(seconds: float, signals: CaughtSignals) -> None:
    until_t = time.monotonic() + seconds
    while not signals.received and (left_s := until_t - time.monotonic()) > 0:
        time.sleep(min(_NAP_S, left_s))
