"""What the trials say of each arm, sorted out once for every stage of a policy."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.trial import Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from zeusrun.bandit.observation import Run
    from zeusrun.bandit.problem import Problem

# You et al. do not treat memory. Of an arm that has trained before, one such crash may be a
# neighbour's doing, two are the arm's; one that never has is taken at its word.
_MOST_CRASHES = 2

_RESULTS = frozenset({TrialStatus.REACHED, TrialStatus.MISSED, TrialStatus.STOPPED})
_TRAINED = _RESULTS | {TrialStatus.CANCELLED}
_FAILURES = frozenset({TrialStatus.MISSED, TrialStatus.STOPPED, TrialStatus.OOM})


@dataclass(frozen=True)
class Ledger:
    """Per arm what was seen, oldest first by start, whatever the order of finishing.

    Attributes:
        results: Runs that reached the target or failed to, by arm.
        costs_j: Known costs of the ``REACHED`` ones by arm, the last ``Problem.window`` of them.
        out_of_memory: How often each arm ran out of memory.
        fitting: Candidates that memory does not rule out, ascending.
        not_now: Arms that failed in an earlier attempt of the recurrence being decided.
        exploring: Whether another recurrence has an exploration in flight.
    """

    results: Mapping[int, Sequence[Run]]
    costs_j: Mapping[int, Sequence[float]]
    out_of_memory: Mapping[int, int]
    fitting: tuple[int, ...]
    not_now: frozenset[int]
    exploring: bool


def build_ledger(problem: Problem, runs: Sequence[Run]) -> Ledger:
    """Sort those of a job's runs by arm that were measured as they would be today.

    Args:
        problem: What is being decided.
        runs: All runs of the job, oldest first.
    """
    results: defaultdict[int, list[Run]] = defaultdict(list)
    costs_j: defaultdict[int, list[float]] = defaultdict(list)
    out_of_memory: Counter[int] = Counter()
    exploring = False
    not_now = set()
    for run in runs:
        arm, status = run.arm, run.status
        if run.recurrence == problem.recurrence and status in _FAILURES:
            not_now.add(arm)  # whatever else it says, it must not be repeated at once
            if status is TrialStatus.OOM:
                not_now.update(larger for larger in problem.candidates if larger > arm)
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
    return Ledger(
        results=dict(results),
        costs_j={b: costs[-window:] for b, costs in costs_j.items()},
        out_of_memory=out_of_memory,
        fitting=fitting(problem.candidates, out_of_memory, trained_arms(runs)),
        not_now=frozenset(not_now),
        exploring=exploring,
    )


def likeliest_arm(ledger: Ledger) -> tuple[int, str] | None:
    """Return the arm that has reached the target most reliably, and a sentence that says so.

    It is for the last attempt of a recurrence. Arms are compared by plain counts,
    ``(reached + 1) / (runs + 2)``, then by their cheapest run; those that failed in the
    recurrence are left out.

    Returns:
        ``None`` where nothing else has ever reached the target.
    """
    runs = {arm: ledger.results.get(arm, ()) for arm in ledger.fitting if arm not in ledger.not_now}
    reached = {
        arm: sum(run.status is TrialStatus.REACHED for run in own) for arm, own in runs.items()
    }
    options = [arm for arm, times in reached.items() if times]
    if not options:
        return None

    def rank(arm: int) -> tuple[float, float]:
        share = (reached[arm] + 1) / (len(runs[arm]) + 2)
        return -share, min(ledger.costs_j.get(arm, ()), default=math.inf)

    arm = min(options, key=rank)
    told = f"{reached[arm]} of {len(runs[arm])} runs"
    return arm, f"this is the last attempt allowed, and {arm} has reached the target in {told}"


def trained_arms(runs: Iterable[Run]) -> set[int]:
    """Return the arms that have trained for an epoch or to an end, and so have fitted."""
    return {run.arm for run in runs if run.local and run.epochs and run.status in _TRAINED}


def fitting(
    candidates: Sequence[int], out_of_memory: Mapping[int, int], trained: Iterable[int]
) -> tuple[int, ...]:
    """Return the candidates below the first that memory rules out.

    Args:
        candidates: Ascending.
        out_of_memory: How often each arm ran out of memory; arms that never did may be absent.
        trained: Arms that have trained; what is smaller has fitted, too.
    """
    proven = max(trained, default=0)
    too_large = [
        arm
        for arm, times in out_of_memory.items()
        if times >= (_MOST_CRASHES if arm <= proven else 1)
    ]
    return tuple(arm for arm in candidates if not too_large or arm < min(too_large))
