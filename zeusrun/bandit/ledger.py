"""What the trials say of each arm, sorted out once for every stage of a policy."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.bandit.comparable import comparable
from zeusrun.trial import Stage, Trial, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.bandit.problem import Problem

# You et al. do not treat memory. One such crash may be a neighbour's doing, two are the arm's.
OUT_OF_MEMORY_LIMIT = 2

_RESULTS = frozenset({TrialStatus.REACHED, TrialStatus.MISSED, TrialStatus.STOPPED})
_FAILURES = frozenset({TrialStatus.MISSED, TrialStatus.STOPPED, TrialStatus.OOM})


@dataclass(frozen=True)
class Ledger:
    """Per arm what was seen, oldest first by start, whatever the order of finishing.

    Attributes:
        results: ``REACHED``, ``MISSED`` and ``STOPPED`` trials by arm.
        costs_j: Known costs of the ``REACHED`` ones by arm, the last ``Problem.window`` of them.
        out_of_memory: How often each arm ran out of memory.
        fitting: Candidates that memory does not rule out, ascending.
        not_now: Arms that failed in an earlier attempt of the recurrence being decided.
        exploring: Whether another recurrence has an exploration in flight.
    """

    results: Mapping[int, Sequence[Trial]]
    costs_j: Mapping[int, Sequence[float]]
    out_of_memory: Mapping[int, int]
    fitting: tuple[int, ...]
    not_now: frozenset[int]
    exploring: bool


def build_ledger(problem: Problem, trials: Sequence[Trial]) -> Ledger:
    """Sort the comparable ones of a job's trials by arm.

    Args:
        problem: What is being decided.
        trials: All trials of the job, oldest first.
    """
    results: defaultdict[int, list[Trial]] = defaultdict(list)
    costs_j: defaultdict[int, list[float]] = defaultdict(list)
    out_of_memory: Counter[int] = Counter()
    exploring = False
    for trial in comparable(problem, trials):
        arm = trial.global_batch_size
        if trial.status in _RESULTS:
            results[arm].append(trial)
            if trial.cost_j is not None:
                costs_j[arm].append(trial.cost_j)
        elif trial.status is TrialStatus.OOM:
            out_of_memory[arm] += 1
        elif trial.stage is Stage.EXPLORE and trial.recurrence != problem.recurrence:
            exploring = True
    too_large = min((b for b, n in out_of_memory.items() if n >= OUT_OF_MEMORY_LIMIT), default=None)
    window = problem.window or 0  # and [-0:] is everything
    return Ledger(
        results=dict(results),
        costs_j={b: costs[-window:] for b, costs in costs_j.items()},
        out_of_memory=out_of_memory,
        fitting=tuple(b for b in problem.candidates if too_large is None or b < too_large),
        # From all trials: a failure that teaches nothing must still not be repeated at once.
        not_now=frozenset(
            trial.global_batch_size
            for trial in trials
            if trial.recurrence == problem.recurrence and trial.status in _FAILURES
        ),
        exploring=exploring,
    )
