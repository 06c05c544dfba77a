"""A tick that starts nothing, and a process that does what it would have started."""

from __future__ import annotations

from typing import NamedTuple

from zeusrun.schedule import tick as ticks


class Ticked(NamedTuple):
    """What a tick would have started, each with its occurrence, and what it told."""

    due: tuple
    messages: tuple


def tick(schedules, now):
    due, messages = [], []

    def start(_schedules, schedule, at, _lock):
        due.append((schedule, at))

    ticks.start_due(schedules, now, messages.append, start)
    return Ticked(tuple(due), tuple(messages))


def fire(schedules, job, occurrence, run, plan=None):
    """Run an occurrence in this process; 75 if another one has it."""
    lock = ticks.take(schedules, job, occurrence)
    if lock is None:
        return 75
    return ticks.fire(schedules, job, occurrence, lock, run, plan=plan)
