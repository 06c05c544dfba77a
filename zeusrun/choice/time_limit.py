"""Leaves out the batch sizes that cannot finish before the allocation of a job ends.

Only for a script that is known not to resume: one that saves checkpoints is continued later.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.bandit.auto.evidence import gather
from zeusrun.bandit.eras import compare_training, find_differences
from zeusrun.bandit.proof import prove, same_hardware, same_learning, same_split
from zeusrun.reasons import ReasonCode, seconds_text
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zeusrun.bandit.problem import Problem, Runs
    from zeusrun.choice.problem import Chooser, Machine, Moment
    from zeusrun.trial import Decision, Trial

_NEWEST = 3  # runs of an arm that count: one may be slow by accident, and machines and data change
# Of the time that is left, from which a run that had not ended says that it is too short: a
# time limit leaves some seconds more or less each time, and the last step is before the end.
_NEARLY = 0.9


class Fitting(NamedTuple):
    """What the policy may choose from in the time that is left."""

    problem: Problem
    default: int  # of the job, perhaps left out
    none_fits: bool = False  # then the fastest one is the only candidate
    note: str | None = None  # a sentence for people: what is left out, and why

    def explain(self, decision: Decision) -> Decision:
        """Return a decision that says so if its batch size stands in for the default."""
        arm = decision.global_batch_size
        if self.default in self.problem.candidates or arm != self.problem.default:
            return decision
        role = f"{arm} stands in for the default, {self.default}, which cannot finish in time"
        return replace(decision, why=f"{decision.why} ({role})")


def fit_time_limit(
    chooser: Chooser,
    machine: Machine,
    moment: Moment,
    problem: Problem,
    runs: Runs,
    *,
    trials: Sequence[Trial],
) -> Fitting:
    """Return the problem without the candidates that cannot finish in ``machine.time_left_s``.

    ``runs`` are the ``trials`` as ``read_history`` reads them.

    Nothing is left out without a limit, if the script may resume, or if the user chose the batch
    size. A candidate is left out if, of its newest three comparable runs that show something, none
    fits. A single run is enough if nothing else slowed it down; it takes three that shared their
    devices, stalled or were interrupted. An arm without such runs stays.

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
        return Fitting(problem, default)
    seen: defaultdict[int, list[tuple[float, bool]]] = defaultdict(list)
    for trial in _comparable(problem, trials):
        if (shown := _took_s(problem, trial, left_s)) is not None:
            seen[trial.global_batch_size].append(shown)
    newest = {arm: own[-_NEWEST:] for arm, own in seen.items()}
    enough = (a for a, own in newest.items() if len(own) == _NEWEST or any(c for _, c in own))
    least_s = {arm: min(seconds for seconds, _ in newest[arm]) for arm in enough}
    left_out = tuple(arm for arm in problem.candidates if least_s.get(arm, 0.0) > left_s)
    if not left_out:
        return Fitting(problem, default)

    def rank(arm: int) -> tuple[bool, float, float, int]:
        return arm not in able, least_s.get(arm, math.inf), abs(math.log(arm / default)), arm

    able = gather(problem, runs).fitting  # into memory
    remaining = tuple(arm for arm in problem.candidates if arm not in left_out)
    if not set(able).intersection(remaining):
        remaining = ()
    fastest = min(remaining or left_out, key=rank)
    limit = f"the {_time_text(left_s)} that are left of the time limit"
    advice = "raise it, or let the script save checkpoints"
    note = f"no batch size is likely to finish in {limit}; {advice}"
    if remaining:
        *first, last = map(str, left_out)
        them = f"{', '.join(first)} and {last} are" if first else f"{last} is"
        note = f"{them} left out, because too slow for {limit}; {advice}"
    problem = replace(
        problem,
        candidates=remaining or (fastest,),
        default=default if default in remaining else fastest,
        control=None if default in left_out else problem.control,
    )
    return Fitting(problem, default, not remaining, note)


def _comparable(problem: Problem, trials: Sequence[Trial]) -> Iterator[Trial]:
    """Yield the finished runs that took as long as they would take today, oldest first."""
    same = [trial for trial in trials if trial.variant == problem.variant]
    now = problem.fingerprint or {}
    others = [trial for trial in same if trial.recurrence != problem.recurrence]
    differences = find_differences(same, now, compare_training(now, others).ignored)
    goal = (problem.target, problem.max_epochs)
    for trial, differs in zip(same, differences, strict=True):
        if (
            trial.status.finished
            and differs is None
            and (trial.target, trial.max_epochs) == goal
            and same_learning(problem, trial)
            and same_hardware(problem, trial)
            and same_split(problem, trial)
        ):
            yield trial


def _took_s(problem: Problem, trial: Trial, left_s: float) -> tuple[float, bool] | None:
    """Return what a comparable run shows that its arm takes, and whether nothing slowed it down.

    ``None``: it shows nothing; infinite seconds: more than ``left_s``.
    """
    proof = prove(trial, learn_from_shared=problem.learn_from_shared)
    unheard = trial.reason_code is ReasonCode.NO_METRIC  # stopped early, perhaps as MISSED
    if trial.time_s is None or proof.learning is not None or unheard:
        return None
    # Interruptions and preemptions add what was lost, and a stall adds a pause.
    calm = proof.speed is None and not (trial.interruptions or trial.preemptions or trial.stalls)
    trained_s = (trial.startup_s or 0.0) + trial.time_s
    if trial.status in {TrialStatus.REACHED, TrialStatus.MISSED}:
        return trained_s + (trial.shutdown_s or 0.0), calm
    return (math.inf, calm) if trained_s >= _NEARLY * left_s else None


def _time_text(seconds: float) -> str:
    """Return ``80 s``, ``12 min`` or ``2.5 h``."""
    if seconds < 120:
        return seconds_text(max(0.0, seconds))
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
