"""What ``auto`` thinks, in words and figures for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zeusrun.bandit.auto.acquisition import HORIZON
from zeusrun.bandit.auto.evidence import CRASH_LIMIT, FAILED, was_bounded
from zeusrun.bandit.problem import ArmBelief
from zeusrun.cost import energy_text

if TYPE_CHECKING:
    from zeusrun.bandit.auto.assessment import Position
    from zeusrun.trial import Bound

_Z90 = 1.645  # 90 % of a Gaussian lies within this many standard deviations
_LARGEST_LOG = 700.0  # of a number that a float can hold


def why_first(position: Position, index: int) -> str:
    """Why an arm is run while nothing has reached the target."""
    evidence, arm = position.evidence, position.beliefs.arms[index]
    last = evidence.last_reached
    begin = "the default" if last is None else f"{last}, which reached it last"
    nothing = "nothing has reached the target yet"
    if evidence.moved:
        left_out = _left_out(evidence.moved)
        nothing = f"nothing has reached the target since the job moved, {left_out}"
    elif last is not None:
        nothing = "no batch size that may still run has reached the target yet"
    own = evidence.results.get(arm, ())
    if any(not was_bounded(run) for run in own) or evidence.out_of_memory.get(arm):
        which = "as it was asked for" if last is None else "which is nearest to what reached it"
        return f"{nothing}, whatever the batch size; so {arm}, {which}"
    if arm == last:
        return f"{nothing}; {arm} reached it last"
    if position.problem.last_attempt and arm in evidence.successes:
        return f"{nothing}; this is the last attempt allowed, and {arm} has reached it before"
    if own:
        return f"{nothing}; {arm} was only stopped at an old bound, and is nearest to {begin}"
    if last is None and arm == position.problem.default:
        return f"{arm} is the default, and {nothing}"
    return f"{nothing}; of the batch sizes not tried, {arm} is nearest to {begin}"


def _left_out(moved: int) -> str:
    return f"so that {moved} earlier {'run says' if moved == 1 else 'runs say'} nothing of epochs"


def why_retry(position: Position, index: int) -> str:
    """Why an arm is run after a failure in the same recurrence."""
    failed = ", ".join(map(str, sorted(position.evidence.failed_now)))
    arm = position.beliefs.arms[index]
    last = "; this is the last attempt allowed" if position.problem.last_attempt else ""
    if arm in position.evidence.reached:
        return f"{failed} failed in this recurrence; {arm} has reached the target before{last}"
    begin = position.evidence.last_reached
    return (
        f"{failed} failed in this recurrence; of what is left, {arm} is nearest to {begin}, which "
        f"reached the target last{last}"
    )


def why_after_crash(position: Position, index: int) -> str:
    """Why the incumbent is run after a crash in the same recurrence."""
    crashed = ", ".join(map(str, sorted(position.evidence.crashed_now)))
    arm = position.beliefs.arms[index]
    return (
        f"the script crashed with {crashed}; {arm} has reached the target before, and shows "
        "whether the batch size is to blame"
    )


def why_incumbent(position: Position, index: int) -> str:
    """Why the incumbent is run."""
    arm, cost_j = position.beliefs.arms[index], position.beliefs.incumbent_cost_j
    if cost_j is None:
        return f"{arm} has reached the target, and no cost is known yet"
    moved = position.evidence.moved
    since = f" since the job moved ({_left_out(moved)})" if moved else ""
    return f"{arm} has proved cheapest{since}, {energy_text(cost_j)} a run; no other is worth a try"


def why_try(position: Position, index: int, incumbent: int) -> str:
    """Why another arm is tried."""
    beliefs, values = position.beliefs, position.values
    doubt = _exp(math.sqrt(max(0.0, float(beliefs.covariance[index, index])))) - 1
    worth = 0.0 if values is None else float(values[index])
    than = "as" if _dearer(position, index) == "as dear" else "than"
    return (
        f"{beliefs.arms[index]} is expected {_dearer(position, index)} {than} "
        f"{beliefs.arms[incumbent]}, give or take {doubt:.0%}; to know is worth {worth:.2g} runs "
        f"of it over the next {position.recurrences + HORIZON}"
    )


def _dearer(position: Position, index: int) -> str:
    beliefs = position.beliefs
    other = 0.0 if beliefs.incumbent is None else float(beliefs.mean[beliefs.incumbent])
    share = _exp(float(beliefs.mean[index]) - other) - 1
    if abs(share) < 0.005:
        return "as dear"
    return f"{abs(share):.0%} {'dearer' if share >= 0 else 'cheaper'}"


def belief_of(position: Position, index: int, bound: Bound | None, why: str | None) -> ArmBelief:
    """Return what is believed of one arm.

    Args:
        position: What the decision rests on.
        index: Of the arm.
        bound: That its trial would be held to.
        why: Why it is the next one; ``None`` if it is not.
    """
    evidence, beliefs, values = position.evidence, position.beliefs, position.values
    arm, cost_j = beliefs.arms[index], beliefs.incumbent_cost_j
    log_cost = float(beliefs.mean[index])
    sd = math.sqrt(max(0.0, float(beliefs.covariance[index, index])) + beliefs.run_sd**2)
    learned, timed = evidence.reached or evidence.cut, evidence.epoch_cost_j
    failure_chance = value_j = None
    trials = len(evidence.results.get(arm, ())) + evidence.out_of_memory.get(arm, 0)
    if bound is not None and trials:  # of what was never tried, nobody knows
        far = (math.log(bound.cost_j) - log_cost) / sd
        failure_chance = 0.5 * math.erfc(far / math.sqrt(2))
    if values is not None and cost_j is not None:
        worth_j = float(values[index]) * cost_j
        value_j = worth_j if math.isfinite(worth_j) else None
    return ArmBelief(
        global_batch_size=arm,
        trials=trials,
        reached=len(evidence.reached.get(arm, ())),
        epochs=_exp(float(beliefs.log_epochs[index])) if learned else None,
        epoch_cost_j=_exp(float(beliefs.log_epoch_cost[index])) if timed else None,
        cost_j=None if cost_j is None else _exp(log_cost + beliefs.run_sd**2 / 2),
        cost_range_j=None
        if cost_j is None
        else (_exp(log_cost - _Z90 * sd), _exp(log_cost + _Z90 * sd)),
        failure_chance=failure_chance,
        value_j=value_j,
        chance=float(why is not None),
        verdict=(_verdict(position, index) if why is None else f"next: {why}")
        + _crashes(position, arm),
    )


def _exp(log: float) -> float:
    """Return the exponential, or the largest there is: arms may be any number of doublings away."""
    return math.exp(min(log, _LARGEST_LOG))


def _crashes(position: Position, arm: int) -> str:
    """Return a clause on the crashes of an arm that may run all the same; empty without one."""
    count = position.evidence.crashed_runs.get(arm, 0)
    if not count or arm not in position.evidence.fitting:
        return ""
    return "; its script crashed " + ("once" if count == 1 else f"{count} times")


def _verdict(position: Position, index: int) -> str:
    evidence, beliefs = position.evidence, position.beliefs
    arm = beliefs.arms[index]
    if arm not in evidence.fitting:
        crashed = evidence.crashes.get(arm, 0)
        memory = "it, or a smaller one, ran out of memory"
        times = f"out: its script crashed in {crashed} recurrences, and not with others"
        return times if crashed >= CRASH_LIMIT else f"out: {memory}"
    if index == beliefs.incumbent:
        return "has proved cheapest"
    if arm in evidence.in_flight:
        return "in flight in another recurrence"
    failures = sum(run.status in FAILED for run in evidence.results.get(arm, ()))
    tale = f"failed {failures} of {len(evidence.results[arm])}; " if failures else ""
    if beliefs.incumbent is None:
        return f"{tale}waits until a run has reached the target"
    if position.values is None:
        return f"{tale}waits until a cost is known"
    teach = "a try would pay, but less" if position.values[index] > 0 else "a try would not pay"
    return f"{tale}{_dearer(position, index)}; {teach}"
