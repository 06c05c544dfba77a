"""Policy ``auto``: runs the cheapest arm so far, unless trying another one is expected to pay.

docs/policies.md derives it, and says what each part is worth.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.bandit.auto.beliefs import (
    HORIZON,
    LEAST_SAVING,
    Assessment,
    assess,
    newest_paces,
    way_gone,
)
from zeusrun.bandit.auto.drift import describe_outdated
from zeusrun.bandit.auto.evidence import (
    CRASH_LIMIT,
    NOISY_SHARE_OF_RANGES,
    PROVEN,
    find_speed_variance,
    was_bounded,
)
from zeusrun.bandit.baselines import WalkingPolicy
from zeusrun.bandit.power import first_lever
from zeusrun.bandit.problem import FAILED, SDS90, ArmBelief, finite_exp, student
from zeusrun.cost import energy_text
from zeusrun.trial import Bound, Decision, Stage, TrialStatus, adapts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from numpy.random import Generator

    from zeusrun.bandit.auto.evidence import Evidence
    from zeusrun.bandit.problem import Problem, Runs

SPEED_CHECK_S = 30.0  # of training show an arm's speed
SPEED_CHECK_SHARE = 0.2  # of the cost of a run that a speed check may cost
LOST_SHARE = 0.2  # of the cost of a run; after larger losses, only proven arms follow
LEAP = 3  # failures of a recurrence after which the best arm is not near where it was
PACES = 5  # learning curves that a trial is compared with
_FAR = 9.0  # times more, of which no number is said: so little is known
_CERTAIN = 0.9  # that a run would be stopped


class Auto(WalkingPolicy):
    """The default policy; see the module. It uses no random number."""

    name = "auto"

    def choose(self, problem: Problem, runs: Runs, rng: Generator) -> Decision:
        """Choose the next trial."""
        now = assess(problem, runs)
        index, stage, why = _select(now)
        arm = problem.candidates[index]
        bound = _bound(now, index, proven=stage in PROVEN)
        return Decision(arm, stage, why, first_lever(problem, runs, arm), bound)

    def explain(self, problem: Problem, runs: Runs, rng: Generator) -> list[ArmBelief]:
        """Return what is believed of every candidate."""
        now = assess(problem, runs)
        index, _, why = _select(now)
        return [
            belief_of(now, i, _bound(now, i, proven=False), why if i == index else None)
            for i in range(len(problem.candidates))
        ]


def bound_of_proven(problem: Problem, runs: Runs) -> Bound | None:
    """Return the bound of a trial that does not explore; ``None`` if nothing bounds its cost.

    Used for a trial that continues after preemption.
    """
    now = assess(problem, runs)
    incumbent = now.beliefs.incumbent
    return None if incumbent is None else _bound(now, incumbent, proven=True)


def _select(now: Assessment) -> tuple[int, Stage, str]:
    """Return the index of the arm to run next, the stage, and why."""
    evidence, arms, values = now.evidence, now.beliefs.arms, now.values
    incumbent, last = now.beliefs.incumbent, now.problem.last_attempt
    if incumbent is None:
        index = _first(now)
        return index, Stage.EXPLORE, why_first(now, index)
    if evidence.crashed_now and arms[incumbent] not in evidence.crashed_now | evidence.failed_now:
        return incumbent, Stage.RETRY, why_after_crash(now, incumbent)
    if evidence.failed_now and (last or _enough_of_trying(now, incumbent)):
        chosen = _likeliest if last and evidence.proven_failed_now else _proven
        index = chosen(now, incumbent)
        return index, Stage.RETRY, why_retry(now, index)
    if values is None or last or values.max() <= LEAST_SAVING:
        return incumbent, Stage.EXPLOIT, why_incumbent(now, incumbent)
    best = int(values.argmax())
    why = why_try(now, best, incumbent)
    if _needs_speed_check(now, best):
        why = f"{why}; at first, only {SPEED_CHECK_S:g} s are spent, to measure its speed"
        return best, Stage.SPEED_CHECK, why
    return best, Stage.EXPLORE, why


def _first(now: Assessment) -> int:
    """Choose while nothing has reached the target: untried arms, the nearest first.

    The search begins at the default or, after the job has changed, at the arm that reached the
    target last: the best arm now is rarely far from it. When no arm is left, that one runs again.
    An arm in flight may be chosen: without bounds, spreading out costs more than it teaches.
    """
    problem, evidence = now.problem, now.evidence
    begin = evidence.last_reached or problem.default
    untried = [
        arm
        for arm in evidence.fitting
        if not evidence.out_of_memory.get(arm)
        and all(was_bounded(run) for run in evidence.results.get(arm, ()))
    ]
    proven = [arm for arm in untried if arm in evidence.successes]
    if problem.last_attempt and len(evidence.failed_now) >= LEAP and proven:
        # The best arm is far from where it was. One that needed few epochs may need more today.
        arm = min(proven, key=lambda arm: evidence.successes[arm])
    else:
        options = untried or evidence.fitting or [problem.default]
        arm = min(options, key=lambda arm: (abs(math.log(arm / begin)), arm))
    return problem.candidates.index(arm)


def _usable(now: Assessment, failed: Collection[int]) -> tuple[list[int], set[int]]:
    """Return indexes of arms that have reached the target and not failed, and all free arms."""
    free = set(now.evidence.fitting).difference(failed)
    usable = free & now.evidence.reached.keys()
    return [i for i, arm in enumerate(now.beliefs.arms) if arm in usable], free


def _proven(now: Assessment, incumbent: int) -> int:
    """Choose, after a failure, the cheapest proven arm that has not failed in this recurrence."""
    proven, free = _usable(now, now.evidence.failed_now)
    expected = now.beliefs.mean + now.beliefs.covariance.diagonal() / 2
    nearest = _nearest(now, free, incumbent)
    return min(proven, key=lambda i: float(expected[i]), default=nearest)


def _nearest(now: Assessment, free: Collection[int], incumbent: int) -> int:
    """Return the free arm that has failed least often since a run reached the target.

    Of several, it is the nearest to the arm of that run; of two as near, the cheaper one. The arms
    nearby may no longer reach the target.
    """
    arms, mean = now.beliefs.arms, now.beliefs.mean
    begin = now.evidence.last_reached or arms[incumbent]

    def rank(i: int) -> tuple[int, float, float]:
        failed = now.evidence.failed_since[arms[i]]
        return failed, round(abs(math.log(arms[i] / begin)), 9), float(mean[i])

    return min((i for i, arm in enumerate(arms) if arm in free), key=rank, default=incumbent)


def _likeliest(now: Assessment, incumbent: int) -> int:
    """Choose the arm most likely to reach the target, for the last attempt after the best failed.

    That attempt has no bound, so an arm that was only stopped in the recurrence may run again; one
    that missed the target may not. The chance is that of fewer epochs than ``max_epochs``. The
    learning curves of stopped runs show how many epochs they would have taken, and by how much the
    job differs today.
    """
    beliefs = now.beliefs
    proven, free = _usable(now, now.evidence.missed_now)
    sd = np.sqrt(np.maximum(0.0, beliefs.covariance.diagonal()) + now.evidence.run_sd**2)
    log_epochs = beliefs.log_epochs.copy()
    today = {beliefs.arms.index(arm): math.log(epochs) for arm, epochs in _extrapolated(now)}
    if today:
        log_epochs += sum(log - log_epochs[i] for i, log in today.items()) / len(today)
        log_epochs[list(today)] = list(today.values())
    spare = (math.log(now.problem.epoch_limit) - log_epochs) / sd
    nearest = _nearest(now, free, incumbent)
    return max(proven, key=lambda i: float(spare[i]), default=nearest)


def _extrapolated(now: Assessment) -> Iterator[tuple[int, float]]:
    """Yield arms stopped in the recurrence, and the epochs that they would have taken."""
    problem, evidence = now.problem, now.evidence
    paces = newest_paces(evidence)
    for arm in evidence.failed_now.difference(evidence.missed_now).intersection(problem.candidates):
        for run in evidence.results.get(arm, ())[-1:]:  # none if it is from before the job changed
            if run.status is TrialStatus.STOPPED and paces and run.pace and run.epochs:
                yield arm, run.epochs / way_gone(problem.mode, paces, run.pace[-1][1])


def _enough_of_trying(now: Assessment, incumbent: int) -> bool:
    """Whether the recurrence has lost so much that only a proven arm may follow."""
    evidence, cost_j = now.evidence, now.beliefs.incumbent_cost_j
    if cost_j is None or now.beliefs.arms[incumbent] in evidence.failed_now:
        return True
    return evidence.lost_now_j > LOST_SHARE * cost_j


def _needs_speed_check(now: Assessment, index: int) -> bool:
    """Whether an arm's speed is unknown, and costs little to measure."""
    power_w, cost_j = now.problem.max_power_w, now.beliefs.incumbent_cost_j
    if adapts(now.problem.variant):  # the speed at its first batch size says little
        return False
    if not now.problem.speed_checks:
        return False
    if now.beliefs.arms[index] in now.evidence.speeds or not power_w or not cost_j:
        return False
    return SPEED_CHECK_S * power_w < SPEED_CHECK_SHARE * cost_j


def _bound(now: Assessment, index: int, *, proven: bool) -> Bound | None:
    """Return the user's bound for a proven arm, and a tighter one for a try.

    If the best arm has failed in the recurrence, the cost of a run today is unknown, and old bounds
    may stop every batch size. The last attempt then has no bound.
    """
    beliefs, factor = now.beliefs, now.problem.cost_factor
    incumbent, cost_j = beliefs.incumbent, beliefs.incumbent_cost_j
    if factor is None or incumbent is None or cost_j is None:
        return None
    if now.problem.last_attempt and now.evidence.proven_failed_now:
        return None
    if proven or index == incumbent:
        return Bound(max(factor, now.evidence.widest[beliefs.arms[incumbent]]) * cost_j)
    newest = now.evidence.reached[beliefs.arms[incumbent]][: -PACES - 1 : -1]
    paces = tuple(run.pace for run in newest if run.pace)
    return Bound((beliefs.bound_factor or factor) * cost_j, paces)


def why_first(now: Assessment, index: int) -> str:
    """Say why an arm is run while nothing has reached the target."""
    evidence, arm = now.evidence, now.beliefs.arms[index]
    last = evidence.last_reached
    begin = "the default" if last is None else f"{last}, which reached it last"
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
    own = evidence.results.get(arm, ())
    if any(not was_bounded(run) for run in own) or evidence.out_of_memory.get(arm):
        which = "the default" if last is None else "the nearest to the one that reached it last"
        return f"{nothing}, and every batch size has failed; so {arm}, {which}"
    if last is None and arm == now.problem.default:
        return f"{arm} is the default, and {nothing}"
    if arm == last:
        return f"{nothing}; {arm} reached it last"
    if now.problem.last_attempt and arm in evidence.successes:
        return f"{nothing}; this is the last attempt allowed, and {arm} has reached it before"
    options = "not tried, or only stopped at an old bound" if own else "not tried"
    return f"{nothing}; of the batch sizes {options}, {arm} is nearest to {begin}"


def why_retry(now: Assessment, index: int) -> str:
    """Say why an arm is run after a failure in the same recurrence."""
    arm, begin = now.beliefs.arms[index], now.evidence.last_reached
    counts, left = now.evidence.failed_since, set(now.evidence.fitting) - now.evidence.failed_now
    if arm in now.evidence.reached:
        why = f"{arm} has reached the target before"
    elif any(counts[other] > counts[arm] for other in left):
        least = "of the batch sizes that have failed least often since then"
        why = f"{begin} reached the target last; {least}, {arm} is nearest to it"
    else:
        why = f"of what is left, {arm} is nearest to {begin}, which reached the target last"
    last = "; this is the last attempt allowed" if now.problem.last_attempt else ""
    return f"{_listed(now.evidence.failed_now)} failed in this recurrence; {why}{last}"


def why_after_crash(now: Assessment, index: int) -> str:
    """Say why the incumbent is run after a crash in the same recurrence."""
    return (
        f"the script crashed with {_listed(now.evidence.crashed_now)}; {now.beliefs.arms[index]} "
        "has reached the target before, and will show whether the batch size is the cause"
    )


def _listed(arms: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(arms)))


def why_incumbent(now: Assessment, index: int) -> str:
    """Say why the incumbent is run."""
    arm, cost_j = now.beliefs.arms[index], now.beliefs.incumbent_cost_j
    outdated = now.evidence.outdated
    if cost_j is None:
        return f"{arm} has reached the target, and no cost is known yet"
    since = "so far"
    if outdated:
        since = f"since the job changed ({describe_outdated(outdated)} for epochs)"
    return (
        f"{arm} is the cheapest batch size {since}, {energy_text(cost_j)} a run; trying another is "
        "not expected to pay"
    )


def why_try(now: Assessment, index: int, incumbent: int) -> str:
    """Say why another arm is tried."""
    beliefs = now.beliefs
    worth = 0.0 if now.values is None else float(now.values[index])
    saving = f"{worth:.2g} runs" if worth >= 1.05 else f"{worth:.0%} of a run"
    arm, best = beliefs.arms[index], beliefs.arms[incumbent]
    return (
        f"{arm} is expected to be {_compared(now, index)} {best}, but this is uncertain; trying it "
        f"is expected to save the cost of about {saving} over the next {HORIZON} recurrences"
    )


def _compared(now: Assessment, index: int) -> str:
    mean, incumbent = now.beliefs.mean, now.beliefs.incumbent
    other = 0.0 if incumbent is None else float(mean[incumbent])
    share = finite_exp(float(mean[index]) - other) - 1
    if abs(share) < 0.005:
        return "as expensive as"
    if share >= _FAR:
        return "far more expensive than"
    if share >= 0.95:  # 2 times reads better than 99 % more
        return f"{share + 1:.2g} times as expensive as"
    return f"{abs(share):.0%} {'more expensive' if share >= 0 else 'cheaper'} than"


def belief_of(now: Assessment, index: int, bound: Bound | None, why: str | None) -> ArmBelief:
    """Return what is believed of one arm; ``why`` it is the next one, ``None`` if it is not."""
    evidence, beliefs = now.evidence, now.beliefs
    arm, cost_j = beliefs.arms[index], beliefs.incumbent_cost_j
    log_cost = float(beliefs.mean[index])
    sd = math.sqrt(max(0.0, float(beliefs.covariance[index, index])) + beliefs.run_sd**2)
    trials = len(evidence.results.get(arm, ())) + evidence.out_of_memory.get(arm, 0)
    cost_range_j = failure_chance = value_j = None
    if bound is not None and trials:  # an arm that was never tried may fail for any reason
        far = (math.log(bound.cost_j) - log_cost) / sd
        failure_chance = 0.5 * math.erfc(far / math.sqrt(2))
    if cost_j is not None:
        far = _find_reach(evidence, arm, sd)
        cost_range_j = finite_exp(log_cost - far), finite_exp(log_cost + far)
    if now.values is not None and cost_j is not None:
        worth_j = float(now.values[index]) * cost_j
        value_j = worth_j if math.isfinite(worth_j) else None
    return ArmBelief(
        global_batch_size=arm,
        trials=trials,
        reached=len(evidence.reached.get(arm, ())),
        epochs=finite_exp(float(beliefs.log_epochs[index])) if evidence.reached else None,
        epoch_cost_j=finite_exp(float(beliefs.log_epoch_cost[index])) if evidence.speeds else None,
        cost_j=None if cost_j is None else finite_exp(log_cost + beliefs.run_sd**2 / 2),
        cost_range_j=cost_range_j,
        failure_chance=failure_chance,
        value_j=value_j,
        chance=float(why is not None),
        verdict=_verdict(now, index, failure_chance) if why is None else why,
    )


def _find_reach(evidence: Evidence, arm: int, sd: float) -> float:
    """Return how far from its mean the next run's log cost lies in nine runs of ten, at most.

    ``sd`` is the standard deviation by which ``auto`` chooses.
    """
    noise, freedom = find_speed_variance(evidence.timed, NOISY_SHARE_OF_RANGES)
    runs = max(1, len(evidence.speeds.get(arm, ())))
    sd = math.sqrt(sd**2 + (noise - evidence.speed_sd**2) * (1 + 1 / runs))
    own = evidence.run_sd**2
    both = (own + noise) ** 2 / (own**2 / evidence.freedom + noise**2 / freedom)  # Satterthwaite
    return student(SDS90, both) * sd


def _verdict(now: Assessment, index: int, failure_chance: float | None) -> str:
    evidence, beliefs = now.evidence, now.beliefs
    arm = beliefs.arms[index]
    if arm not in evidence.fitting:
        crashed = evidence.crashes.get(arm, 0)
        times = f"its script crashed in {crashed} recurrences, and not with others"
        memory = "it, or a smaller one, ran out of memory"
        return f"out: {times if crashed >= CRASH_LIMIT else memory}"
    if index == beliefs.incumbent:
        return "the cheapest so far"
    if arm in evidence.in_flight:
        return "runs now, in another recurrence"
    failures = sum(run.status in FAILED for run in evidence.results.get(arm, ()))
    failed = f"failed {failures} of {len(evidence.results[arm])}; " if failures else ""
    if beliefs.incumbent is None or now.values is None:
        missing = "a batch size has reached the target"
        until = missing if beliefs.incumbent is None else "a cost is known"
        return f"{failed}may run as soon as {until}"
    pays = now.values[index] > LEAST_SAVING
    worth = "worth a try, but less than another" if pays else "not worth a try"
    stopped = ""
    if arm in evidence.reached and (failure_chance or 0.0) > _CERTAIN:
        stopped = ", so that a try would be stopped for its cost"
    failed += "counting that, " if failures else ""
    return f"{failed}{_compared(now, index)} {beliefs.arms[beliefs.incumbent]}{stopped}; {worth}"
