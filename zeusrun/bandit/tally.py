"""A job's runs sorted by batch size, for policies that treat each batch size by itself."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.bandit.observation import OUTDONE
from zeusrun.bandit.problem import ArmBelief
from zeusrun.bandit.zeus.thompson import believe
from zeusrun.trial import Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from zeusrun.bandit.observation import Run
    from zeusrun.bandit.problem import Problem

# You et al. do not treat memory. If an arm has trained before, one OOM may be a neighbour's
# doing: it takes two to rule the arm out.
_MOST_CRASHES = 2

_RESULTS = frozenset({TrialStatus.REACHED, TrialStatus.MISSED, TrialStatus.STOPPED})
_TRAINED = _RESULTS | {TrialStatus.CANCELLED}


@dataclass(frozen=True)
class Tally:
    """Runs by arm, in order of start."""

    results: Mapping[int, Sequence[Run]]  # that reached the target or failed to
    costs_j: Mapping[int, Sequence[float]]  # known ones of ``REACHED``, the last ``Problem.window``
    out_of_memory: Mapping[int, int]  # how often
    fitting: tuple[int, ...]  # candidates that memory does not rule out, ascending
    not_now: frozenset[int]  # failed in an earlier attempt of the recurrence being decided
    exploring: bool  # whether another recurrence has an exploration in flight


def build_tally(problem: Problem, runs: Sequence[Run]) -> Tally:
    """Sort a job's runs, oldest first; only those measured as they would be today count."""
    results: defaultdict[int, list[Run]] = defaultdict(list)
    costs_j: defaultdict[int, list[float]] = defaultdict(list)
    out_of_memory: Counter[int] = Counter()
    exploring = False
    for run in runs:
        arm, status = run.arm, run.status
        if not run.local or arm not in problem.candidates:
            continue
        if status in _RESULTS:
            results[arm].append(run)
            if run.cost_j is not None:
                costs_j[arm].append(run.cost_j)
        elif status is TrialStatus.OOM:
            out_of_memory[arm] += 1
        elif status is TrialStatus.DISPATCHED and run.recurrence != problem.recurrence:
            exploring = exploring or run.stage is Stage.EXPLORE
    window = problem.window or 0  # and [-0:] is everything
    return Tally(
        results=dict(results),
        costs_j={b: costs[-window:] for b, costs in costs_j.items()},
        out_of_memory=out_of_memory,
        fitting=fitting(problem.candidates, out_of_memory, trained_arms(runs)),
        not_now=failed_now(problem, runs, OUTDONE),
        exploring=exploring,
    )


def failed_now(
    problem: Problem, runs: Iterable[Run], statuses: frozenset[TrialStatus]
) -> frozenset[int]:
    """Return arms that ended so in the recurrence, and those larger than one that did not fit."""
    ended = [run for run in runs if run.recurrence == problem.recurrence and run.status in statuses]
    too_large = min((run.arm for run in ended if run.status is TrialStatus.OOM), default=math.inf)
    return frozenset(
        {run.arm for run in ended}.union(b for b in problem.candidates if b > too_large)
    )


def likeliest_arm(tally: Tally) -> tuple[int, str] | None:
    """Return the arm for a recurrence's last attempt, and why; ``None`` without a success.

    It has the highest ``(reached + 1) / (runs + 2)`` of those that have not failed in this
    recurrence, then the cheapest run.
    """
    runs = {arm: tally.results.get(arm, ()) for arm in tally.fitting if arm not in tally.not_now}
    reached = {
        arm: sum(run.status is TrialStatus.REACHED for run in own) for arm, own in runs.items()
    }
    options = [arm for arm, times in reached.items() if times]
    if not options:
        return None

    def rank(arm: int) -> tuple[float, float]:
        share = (reached[arm] + 1) / (len(runs[arm]) + 2)
        return -share, min(tally.costs_j.get(arm, ()), default=math.inf)

    arm = min(options, key=rank)
    times = f"{reached[arm]} of {len(runs[arm])} runs"
    return arm, f"this is the last attempt allowed, and {arm} has reached the target in {times}"


def trained_arms(runs: Iterable[Run]) -> set[int]:
    """Return the arms that have trained for an epoch, and so fit in memory."""
    return {run.arm for run in runs if run.local and run.epochs and run.status in _TRAINED}


def fitting(
    candidates: Sequence[int], out_of_memory: Mapping[int, int], trained: Iterable[int]
) -> tuple[int, ...]:
    """Return the candidates below the first that memory rules out.

    An arm that has trained fits, and so do all smaller ones.
    """
    proven = max(trained, default=0)
    too_large = [
        arm
        for arm, times in out_of_memory.items()
        if times >= (_MOST_CRASHES if arm <= proven else 1)
    ]
    return tuple(arm for arm in candidates if not too_large or arm < min(too_large))


def explain_arms(
    problem: Problem, tally: Tally, chances: Mapping[int, float], verdict: Callable[[int], str]
) -> list[ArmBelief]:
    """Return what each candidate's own runs say of it.

    ``chances`` are the probabilities of being chosen next; ``verdict`` returns an arm's state.
    """
    return [_explain(tally, arm, chances.get(arm, 0.0), verdict(arm)) for arm in problem.candidates]


def _explain(tally: Tally, arm: int, chance: float, verdict: str) -> ArmBelief:
    results, costs_j = tally.results.get(arm, ()), tally.costs_j.get(arm, ())
    cost = believe(costs_j) if costs_j else None
    trials = len(results) + tally.out_of_memory.get(arm, 0)
    reached = [run for run in results if run.status is TrialStatus.REACHED]
    epochs = [run.epochs for run in reached if run.epochs is not None]
    per_epoch = [run.epoch_cost_j for run in results if run.epoch_cost_j is not None]
    return ArmBelief(
        global_batch_size=arm,
        trials=trials,
        reached=len(reached),
        epochs=statistics.fmean(epochs) if epochs else None,
        epoch_cost_j=statistics.fmean(per_epoch) if per_epoch else None,
        cost_j=cost.mean_j if cost else None,
        cost_range_j=cost.range_j if cost else None,
        failure_chance=1 - len(reached) / trials if trials else None,
        chance=chance,
        verdict=verdict,
    )
