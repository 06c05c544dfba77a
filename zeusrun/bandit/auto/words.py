"""Says why policy ``auto`` chooses a batch size, and what it believes of each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zeusrun.bandit.auto.beliefs import HORIZON, LEAST_SAVING
from zeusrun.bandit.auto.drift import describe_outdated
from zeusrun.bandit.auto.evidence import was_bounded
from zeusrun.bandit.problem import FAILED, SDS90, ArmBelief, finite_exp, student
from zeusrun.cost import energy_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zeusrun.bandit.auto.beliefs import Assessment
    from zeusrun.bandit.auto.evidence import Evidence
    from zeusrun.trial import Bound

_FAR = 9.0  # times more, of which no number is said: so little is known
_TAIL = 0.05  # of the runs are above a range


def why_first(now: Assessment, index: int) -> str:
    """Say why an arm is run while nothing has reached the target."""
    evidence, arm = now.evidence, now.beliefs.arms[index]
    last = evidence.last_reached
    begin = "the default" if last is None else f"{last}, which reached it last"
    first = now.problem.default if last is None else last
    nothing = "nothing has reached the target yet"
    if evidence.outdated:
        left_out = f"so {describe_outdated(evidence.outdated)} for epochs"
        nothing = f"nothing has reached the target since the job changed, {left_out}"
    elif last is not None:
        nothing = "no batch size that may still run has reached the target yet"
    if now.problem.ignored:
        return (
            f"{arm} is the only batch size that runs until the script trains with the one that it "
            "gets; runs with another one teach nothing, even if they reach the target"
        )
    results, out = evidence.results.get(arm, ()), evidence.crashed
    if out.keys() - {arm}:
        nothing = "; ".join((nothing, *(f"{other}: {why}" for other, why in sorted(out.items()))))
    if any(not was_bounded(run) for run in results) or evidence.out_of_memory.get(arm):
        own = "is the default" if last is None else "reached it last"
        which = own if arm == first else f"is the nearest to {begin}"
        return f"{nothing}, and every batch size has failed; {arm} runs because it {which}"
    if last is None and arm == now.problem.default:
        return f"{arm} is the default, and {nothing}"
    if arm == last:
        return f"{nothing}; {arm} reached it last"
    why = f"of the batch sizes left to try, {arm} is nearest to {begin}"
    if first in evidence.in_flight and arm not in evidence.in_flight:
        why = f"{first} runs now, in another recurrence, so {arm} is tried beside it"
    return f"{nothing}; {why}"


def why_retry(now: Assessment, index: int) -> str:
    """Say why an arm is run after a failure in the same recurrence."""
    arm, begin = now.beliefs.arms[index], now.evidence.last_reached
    least = "of the batch sizes that have failed least often since then"
    why = f"{begin} reached the target last; {least}, {arm} is nearest to it"
    if arm in now.evidence.reached:
        why = f"{arm} has reached the target before"
    last = "; this is the last attempt allowed" if now.problem.last_attempt else ""
    return f"{_failures(now.evidence)}; {why}{last}"


def _failures(evidence: Evidence) -> str:
    """Say which arms have failed in the recurrence; above one with an OOM, none may run."""
    too_large, parts = evidence.out_of_memory_now, []
    if too_large:
        parts = [f"{_listed(too_large)} ran out of memory"]
        parts += ["larger ones would, too"] if evidence.failed_now - evidence.ran_now else []
    others = evidence.failed_now & evidence.ran_now - too_large
    return "; ".join(parts + ([f"{_listed(others)} failed in this recurrence"] if others else []))


def why_after_crash(now: Assessment, index: int) -> str:
    """Say why the incumbent is run after a crash in the same recurrence."""
    return (
        f"the script crashed with {_listed(now.evidence.crashed_now)}; {now.beliefs.arms[index]} "
        "has reached the target before, and will show whether the batch size is the cause"
    )


def _listed(arms: Iterable[int]) -> str:
    *most, last = map(str, sorted(arms))
    return f"{', '.join(most)} and {last}" if most else last


def why_incumbent(now: Assessment, index: int) -> str:
    """Say why the incumbent is run."""
    arm, cost_j = now.beliefs.arms[index], now.beliefs.incumbent_cost_j
    outdated = now.evidence.outdated
    if cost_j is None:
        return f"{arm} has reached the target, and no cost is known yet"
    if len(now.beliefs.arms) == 1:
        return f"{arm} is the only candidate, {energy_text(cost_j)} a run"
    since = "so far"
    if outdated:
        since = f"since the job changed ({describe_outdated(outdated)} for epochs)"
    return (
        f"{arm} is the cheapest batch size {since}, {energy_text(cost_j)} a run; trying another is "
        "not expected to save enough"
    )


def why_try(now: Assessment, index: int, incumbent: int) -> str:
    """Say why another arm is tried."""
    beliefs = now.beliefs
    worth = 0.0 if now.values is None else float(now.values[index])
    saving = f"{worth:.2g} runs" if worth >= 1.05 else f"{100 * worth:.0f} % of a run"
    arm, best = beliefs.arms[index], beliefs.arms[incumbent]
    another = "another run of it" if arm in now.evidence.results else "trying it"
    more, of = beliefs.mean[index] - beliefs.mean[incumbent], beliefs.covariance
    twice = 2 * (of[index, index] + of[incumbent, incumbent] - 2 * of[index, incumbent])
    chance = math.erfc(more / math.sqrt(max(1e-9, twice))) / 2
    doubt = "but so little is known that" if more > 0 else "and"
    doubt = f"{doubt} it is cheaper with a probability of {100 * chance:.0f} %"
    known, shown = "", now.evidence.results.keys() | now.evidence.speeds.keys()
    if shown == {best} and not now.evidence.outdated:
        usual = "larger ones usually cost less" if arm > best else "smaller ones may need less"
        known = f"only {best} has run to its end so far, and {usual}: "
    return (
        f"{known}{arm} is expected to be {_compared(now, index)} {best}, "
        f"{doubt}; a bad try costs once, a good one saves in {HORIZON} recurrences; {another} is "
        f"expected to save the cost of about {saving} in all"
    )


def _compared(now: Assessment, index: int) -> str:
    mean, incumbent = now.beliefs.mean, now.beliefs.incumbent
    other = 0.0 if incumbent is None else float(mean[incumbent])
    share = finite_exp(float(mean[index]) - other) - 1
    if abs(share) < 0.005:
        return "as expensive as"
    if share >= _FAR:
        return "far more expensive than"
    return f"{100 * abs(share):.0f} % {'more expensive' if share >= 0 else 'cheaper'} than"


def belief_of(now: Assessment, index: int, bound: Bound | None, why: str | None) -> ArmBelief:
    """Return what is believed of one arm; ``why`` it is the next one, ``None`` if it is not."""
    evidence, beliefs = now.evidence, now.beliefs
    arm, cost_j = beliefs.arms[index], beliefs.incumbent_cost_j
    sd = math.sqrt(max(0.0, float(beliefs.covariance[index, index])) + beliefs.run_sd**2)
    trials = len(evidence.results.get(arm, ())) + evidence.out_of_memory.get(arm, 0)
    cost_range_j = failure_chance = value_j = None
    log_total = float(beliefs.mean[index])
    log_cost = log_total - float(beliefs.log_misses[index])  # if it reaches the target
    most_j = finite_exp(float(beliefs.log_epoch_cost[index])) * now.problem.epoch_limit
    most_j = min(most_j, math.inf if bound is None else bound.cost_j)
    epochs = finite_exp(float(beliefs.log_epochs[index]))
    missing = evidence.luck.missing_of(arm)
    late = math.erfc((math.log(most_j) - log_cost) / sd / math.sqrt(2)) / 2
    risk = missing + (1 - missing) * late
    if trials and (bound is not None or missing):  # one never tried may fail for any reason
        failure_chance = risk
    if cost_j is not None:
        far = _find_reach(evidence, sd)
        high_j = most_j if risk > _TAIL and most_j < math.inf else finite_exp(log_cost + far)
        cost_range_j = min(most_j, finite_exp(log_cost - far)), min(most_j, high_j)
    if now.values is not None and cost_j is not None:
        worth_j = float(now.values[index]) * cost_j
        value_j = worth_j if math.isfinite(worth_j) else None
    return ArmBelief(
        global_batch_size=arm,
        trials=trials,
        reached=len(evidence.reached.get(arm, ())),
        epochs=min(now.problem.epoch_limit, epochs) if evidence.reached else None,
        epoch_cost_j=finite_exp(float(beliefs.log_epoch_cost[index])) if evidence.speeds else None,
        cost_j=None if cost_j is None else finite_exp(log_total + beliefs.run_sd**2 / 2),
        cost_range_j=cost_range_j,
        failure_chance=failure_chance,
        value_j=value_j,
        chance=float(why is not None),
        verdict=_verdict(now, index) if why is None else why,
    )


def _find_reach(evidence: Evidence, sd: float) -> float:
    """Return how far from its mean the next run's log cost lies in nine runs of ten, at most."""
    runs, noise = evidence.run_sd**2, evidence.speed_sd**2
    spread = runs**2 / evidence.freedom + noise**2 / evidence.speed_freedom  # Satterthwaite
    return student(SDS90, (runs + noise) ** 2 / spread) * sd


def _verdict(now: Assessment, index: int) -> str:
    evidence, beliefs = now.evidence, now.beliefs
    arm = beliefs.arms[index]
    if arm not in evidence.fitting:
        return f"out: {evidence.crashed.get(arm, 'it, or a smaller one, ran out of memory')}"
    if index == beliefs.incumbent:
        return "the cheapest so far"
    if arm in evidence.in_flight:
        return "runs now, in another recurrence"
    failures = sum(run.status in FAILED for run in evidence.results.get(arm, ()))
    failed = f"failed {failures} of {len(evidence.results[arm])}; " if failures else ""
    if beliefs.incumbent is None or now.values is None:
        missing = "another one has failed or reached the target"
        return f"{failed}may run once {missing if beliefs.incumbent is None else 'a cost is known'}"
    worth = "worth a try, but less than another"
    if now.values[index] <= LEAST_SAVING:
        worth = "not worth a try" if now.values[index] <= 0 else "a try would save too little"
    failed += "counting that, " if failures else ""
    return f"{failed}{_compared(now, index)} {beliefs.arms[beliefs.incumbent]}; {worth}"
