"""Events and progress as tests need them: whole, and changed in what a test is about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.factories import build_trial
from zeusrun.energy.device_energy import Accounts
from zeusrun.metrics.advance import advance
from zeusrun.metrics.progress import Progress
from zeusrun.metrics.seen import Ranks
from zeusrun.sidecar.events import Ended, Reported, Started
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from collections.abc import Callable

GOAL = build_trial(metric="accuracy", target=0.5, mode="max", max_epochs=5)
LAUNCHED = Progress(launched_t=100.0, now_t=100.0, ranks=Ranks(2))


def ten_watts(since_s, until_s):
    """Joules at a steady 10 W, as strict about its window as a real monitor."""
    if until_s < since_s:
        raise ValueError("the window ends before it starts")
    return 10.0 * (until_s - since_s)


@dataclass(frozen=True)
class KnownMeter:
    """A ``Meter`` of which a test says what it measures."""

    energy_between: Callable = ten_watts
    energy_source: EnergySource | None = EnergySource.COUNTER
    max_power_w: float | None = 40.0
    accounts_j: Callable = lambda _since, _until: Accounts(None, None)
    limit_w: Callable = lambda _since, _until: None
    power_w: Callable = lambda: 10.0


METERED = KnownMeter()
UNMETERED = KnownMeter(lambda _since, _until: None, None)


def after(*events, start=LAUNCHED, goal=GOAL, energy_between=ten_watts):
    """Return the progress after the events."""
    for event in events:
        start = advance(start, event, goal, energy_between)
        start = replace(start, now_t=max(start.now_t, event.t))
    return start


def report(t, epoch, value=None, **metrics):
    return Reported(t, epoch, {**({} if value is None else {GOAL.metric: value}), **metrics})


def started(t, rank=0, restart=0):
    return Started(t, rank, 1000 + rank, restart)


def ended(t, rank=0, code=0, grouped=True):
    return Ended(t, rank, code, grouped)
