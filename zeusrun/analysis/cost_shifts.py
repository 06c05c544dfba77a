"""Changes between recurrences: costs beyond their spread."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.analysis.cost_baseline import (
    NEWEST,
    CostBaseline,
    conditions,
    find_baseline,
    has_cost,
    run_cost_j,
)
from zeusrun.cost import energy_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.trial import Trial


@dataclass(frozen=True)
class CostShift:
    """A batch size whose cost has changed."""

    global_batch_size: int
    since: str  # the first trial at the new cost
    runs: int  # since; 1 may be an accident
    cost_j: float  # their geometric mean
    before: CostBaseline


def find_cost_shifts(trials: Sequence[Trial]) -> list[CostShift]:
    """Return the last shift of each batch size under the conditions of its newest run.

    A shift is two runs in a row beyond the spread of those before, on the same side, or the newest
    run alone. ``trials`` are of one job, oldest first.
    """
    newest = {trial.global_batch_size: trial for trial in trials if has_cost(trial)}
    found = []
    for _, last in sorted(newest.items()):
        own = conditions(last)
        shift = _last_shift([each for each in trials if has_cost(each) and conditions(each) == own])
        if shift is not None:
            found.append(shift)
    return found


def _last_shift(trials: Sequence[Trial]) -> CostShift | None:
    """Return the last shift of runs under the same conditions."""
    level: list[Trial] = []  # runs at the same cost
    suspect: tuple[Trial, int] | None = None
    shift: tuple[int, CostBaseline] | None = None
    for index, trial in enumerate(trials):
        before = find_baseline(level[-NEWEST:], trial)
        cost_j = run_cost_j(trial) or 0.0
        side = 0 if before is None else (cost_j > before.high_j) - (cost_j < before.low_j)
        if before is not None and side and suspect is not None and suspect[1] == side:
            shift, level, suspect = (index - 1, before), [suspect[0], trial], None
            continue
        level += [] if suspect is None else [suspect[0]]
        suspect = (trial, side) if side else None
        level += [] if side else [trial]
    if suspect is not None:
        before = find_baseline(level, suspect[0])
        shift = shift if before is None else (len(trials) - 1, before)
    if shift is None:
        return None
    since = trials[shift[0] :]
    cost_j = math.exp(sum(math.log(run_cost_j(trial) or 1.0) for trial in since) / len(since))
    return CostShift(trials[-1].global_batch_size, since[0].trial, len(since), cost_j, shift[1])


def describe_shifts(trials: Sequence[Trial]) -> list[str]:
    """Describe in sentences which batch sizes cost more or less than before."""
    return [_describe(shift) for shift in find_cost_shifts(trials)]


def _describe(shift: CostShift) -> str:
    arm, times = shift.global_batch_size, f"{shift.cost_j / shift.before.cost_j:.2g} times"
    before = f"{energy_text(shift.before.cost_j)} in {shift.before.runs} runs"
    now = energy_text(shift.cost_j)
    if shift.runs == 1:
        return f"{shift.since} cost {now}, {times} the usual cost of batch size {arm} ({before})"
    return f"batch size {arm} costs {times} as much since {shift.since}: {now}, before it {before}"
