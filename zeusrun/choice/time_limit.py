"""Leaves out the batch sizes that cannot finish before the allocation of a job ends.

Only for a script that is known not to resume: one that saves checkpoints is continued later.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.bandit.auto.evidence import gather
from zeusrun.bandit.proof import is_resized, prove, same_learning
from zeusrun.bandit.reinterpret import read_trials
from zeusrun.reasons import ReasonCode
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.problem import Problem
    from zeusrun.choice.problem import Chooser, Machine, Moment
    from zeusrun.trial import Trial

_NEWEST = 3  # runs of an arm that count: one may be slow by accident, and machines and data change
# Of the time that is left, from which a run that had not ended says that it is too short: a
# time limit leaves some seconds more or less each time, and the last step is before the end.
_NEARLY = 0.9


class Fitting(NamedTuple):
    """What the policy may choose from in the time that is left."""

    problem: Problem
    none_fits: bool = False  # then the fastest one is the only candidate
    note: str | None = None  # a sentence for people: what is left out, and why


def fit_time_limit(
    chooser: Chooser, machine: Machine, moment: Moment, problem: Problem, trials: Sequence[Trial]
) -> Fitting:
    """Return the problem without the candidates that cannot finish in ``machine.time_left_s``.

    Nothing is left out without a limit, if the script may resume, or if the user chose the batch
    size. A candidate is left out if it has comparable runs, and none of the newest three of them
    would fit. Runs that shared their devices, stalled or were interrupted do not count.

    Comparable is a run of today's training with today's hardware, metric, target and
    ``max_epochs``: a test with other values says nothing. A run that reached or missed the target
    shows what the arm takes. Any other shows that the time is too short if it trained for nearly as
    long: up to its last step, because a script that hung then only wasted the rest.

    The default stays a candidate: if it is left out, the fastest of the others stands in for it,
    and no control run is due. If all are left out, or the others ran out of memory, only the
    fastest one stays.
    """
    left_s, default = machine.time_left_s, problem.default
    if left_s is None or moment.resumes is not False or chooser.forced is not None:
        return Fitting(problem)
    seen: defaultdict[int, list[float]] = defaultdict(list)
    read = read_trials(problem, trials)[1]
    for trial, run in zip(trials, read, strict=True):
        took_s = _took_s(problem, trial, left_s)
        if run is not None and run.local and run.differs is None and took_s is not None:
            seen[trial.global_batch_size].append(took_s)
    least_s = {arm: min(own[-_NEWEST:]) for arm, own in seen.items()}
    left_out = tuple(arm for arm in problem.candidates if least_s.get(arm, 0.0) > left_s)
    if not left_out:
        return Fitting(problem)

    def rank(arm: int) -> tuple[float, float, int]:
        return least_s.get(arm, math.inf), abs(math.log(arm / default)), arm

    runs = [run for run in read if run is not None]
    able = gather(problem, runs).fitting or problem.candidates  # into memory
    remaining = tuple(arm for arm in able if arm not in left_out)
    fastest = min(remaining or able, key=rank)
    limit = f"the {left_s / 60:.0f} min that are left of the time limit"
    what = f"too slow to finish in {limit}, and left out: {', '.join(map(str, left_out))}"
    if not remaining:
        what = f"no batch size is likely to finish in {limit}"
    note = f"{what}; raise it, or let the script save checkpoints"
    problem = replace(
        problem,
        candidates=remaining or (fastest,),
        default=default if default in remaining else fastest,
        control=None if default in left_out else problem.control,
    )
    return Fitting(problem, not remaining, note)


def _took_s(problem: Problem, trial: Trial, left_s: float) -> float | None:
    """Return the seconds that a run shows that its arm takes.

    ``None``: it shows nothing; infinite: more than ``left_s``.
    """
    goals = [(each.target, each.max_epochs) for each in (trial, problem)]
    unlike = goals[0] != goals[1] or not same_learning(problem, trial)
    unheard = trial.reason_code is ReasonCode.NO_METRIC  # stopped early, perhaps as MISSED
    # Interruptions and preemptions add what was lost, a stall a pause; other ranks are not as fast.
    slowed = trial.interruptions or trial.preemptions or trial.stalls or is_resized(trial)
    if trial.time_s is None or unlike or unheard or slowed or prove(trial).learning is not None:
        return None
    trained_s = (trial.startup_s or 0.0) + trial.time_s
    if trial.status in {TrialStatus.REACHED, TrialStatus.MISSED}:
        return trained_s + (trial.shutdown_s or 0.0)
    return math.inf if trained_s >= _NEARLY * left_s else None
