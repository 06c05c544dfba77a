"""The schedules in the foreground, for containers: a tick every minute, and an end that is told."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from zeusrun.errors import BusyError, LaunchError
from zeusrun.launcher.signals import CaughtSignals
from zeusrun.schedule.clock import read_clock
from zeusrun.schedule.tick import PERIOD_S, tick

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.launcher.process import Detached
    from zeusrun.schedule.store import Schedule, Schedules

_NAP_S = 0.2  # a signal is heard so soon


def run_daemon(
    schedules: Schedules,
    start: Callable[[Schedule, float], Detached],
    tell: Callable[[str], None],
) -> int:
    """Start what is due every minute until a signal comes; then end what runs, and wait for it.

    Args:
        schedules: Of the user.
        start: Starts an occurrence.
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
                ticked = tick(schedules, now)
                for text in ticked.told:
                    tell(text)
                running = [process for process in running if process.poll() is None]
                for schedule, occurrence in ticked.due:
                    try:
                        running.append(start(schedule, occurrence))
                    except LaunchError as error:  # the others are to run all the same
                        tell(str(error))
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
