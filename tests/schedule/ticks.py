"""A tick that starts nothing, and a process that does what it would have started."""

from __future__ import annotations

import contextlib
from typing import NamedTuple
from unittest import mock

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
    with contextlib.ExitStack() as stack:
        if plan is not None:

            def decide(schedule, _occurrence, now, _home, _environment):
                return plan(schedule, now)

            stack.enter_context(mock.patch("zeusrun.schedule.deferral.decide_start", decide))
        return ticks.fire(schedules, job, occurrence, lock, run)
