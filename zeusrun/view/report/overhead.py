"""What a report says of failures, and of what zeusrun itself took. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.trial import Stage, TrialStatus
from zeusrun.view.report.amounts import sum_known
from zeusrun.view.report.sizes import ENDED_SHORT, size_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.trial import Trial

_CRASHED = frozenset({TrialStatus.FAILED, TrialStatus.LOST})


@dataclass(frozen=True)
class FailureFacts:
    """An attempt that did not reach the target."""

    trial: str
    started_at: str
    label: str
    status: str
    reason: str
    cost_j: float | None


@dataclass(frozen=True)
class OverheadFacts:
    """What zeusrun itself took in one way. ``None``: unknown, or not apart."""

    name: str
    count: int
    time_s: float | None
    energy_j: float | None
    cost_j: float | None


def find_failures(trials: Sequence[Trial]) -> tuple[FailureFacts, ...]:
    """Return the runs that did not reach the target, and were not cancelled or preempted."""
    failures = ENDED_SHORT | _CRASHED
    return tuple(_failure(trial) for trial in trials if trial.status in failures)


def _failure(trial: Trial) -> FailureFacts:
    return FailureFacts(
        trial.trial,
        trial.started_at,
        size_of(trial).label,
        trial.status.value,
        trial.reason or "",
        trial.cost_j,
    )


def build_overhead(trials: Sequence[Trial]) -> tuple[OverheadFacts, ...]:
    """Return what zeusrun itself took, by the way in which it did."""
    checks = [
        trial
        for trial in trials
        if trial.stage is Stage.SPEED_CHECK and trial.status is TrialStatus.CANCELLED
    ]
    probed = [trial for trial in trials if trial.profiling_cost_j is not None]
    started = [trial.startup_s for trial in trials]
    rows = (
        OverheadFacts(
            "start-up of the runs (imports, rendezvous, first batch)",
            sum(seconds is not None for seconds in started),
            sum_known(started),
            None,
            None,
        ),
        _taken("speed checks after which another batch size ran", checks),
        OverheadFacts(
            "probes of power limits",
            len(probed),
            None,
            None,
            sum_known(trial.profiling_cost_j for trial in probed),
        ),
        _taken(
            "attempts that ended without the target",
            [trial for trial in trials if trial.status in ENDED_SHORT],
        ),
        _taken(
            "attempts that crashed or were lost",
            [trial for trial in trials if trial.status in _CRASHED],
        ),
    )
    return tuple(row for row in rows if row.count)


def _taken(name: str, trials: Sequence[Trial]) -> OverheadFacts:
    return OverheadFacts(
        name,
        len(trials),
        sum_known(trial.time_s for trial in trials),
        sum_known(trial.energy_j for trial in trials),
        sum_known(trial.cost_j for trial in trials),
    )
