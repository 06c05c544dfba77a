"""Policy ``zeus``: pruning exploration, then Gaussian Thompson sampling.

You, Chung and Chowdhury, "Zeus: Understanding and Optimizing GPU Energy Consumption of DNN
Training", NSDI 2023, the section on batch size optimisation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zeusrun.bandit.baselines import SweepingPolicy
from zeusrun.bandit.power import sweep_lever
from zeusrun.bandit.problem import merged_profile
from zeusrun.bandit.tally import (
    CostBelief,
    Tally,
    believe,
    build_tally,
    explain_arms,
    likeliest_arm,
)
from zeusrun.cost import energy_text
from zeusrun.trial import Bound, Decision, Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.random import Generator

    from zeusrun.bandit.problem import ArmBelief, Observation, Problem, Runs, RunsByArm


# You et al., NSDI 2023: a second round gives each surviving arm a first idea of its spread.
ROUNDS = 2

# A survivor whose cost is unknown after both rounds may run until it has this many runs.
UNKNOWN_COST_LIMIT = ROUNDS + 2

CHANCE_DRAWS = 4000  # standard error of a chance below 0.8 %, in under a millisecond


class Zeus(SweepingPolicy):
    """The policy of the NSDI 2023 paper.

    Each decision replays the exploration over all comparable trials (``prune``), so a
    pruned arm stays pruned. ``Problem.window`` limits only the costs that Thompson sampling and the
    bound use. While another recurrence explores, a recurrence runs the cheapest arm known. Unlike
    in the paper, the last attempt of a recurrence goes to the arm that has reached the target most
    reliably.
    """

    name = "zeus"

    def choose(self, problem: Problem, runs: Runs, rng: Generator) -> Decision:
        """Choose the batch size of the next trial; only Thompson sampling uses ``rng``."""
        tally = build_tally(problem, runs)
        step = plan_step(problem, tally)
        arm, stage, why = step.arm, step.stage, step.why
        likeliest = likeliest_arm(tally) if problem.last_attempt else None
        if likeliest is not None:
            arm, stage = likeliest[0], Stage.RETRY
            why = f"this is the last attempt allowed, and {likeliest[1]}"
        if arm is None:
            drawn = draw_j(step.beliefs, rng)
            arm, second = sorted(drawn, key=lambda arm: (drawn[arm], arm))[:2]
            known = step.beliefs[arm].runs
            why = (
                f"{arm} drew a cost of {energy_text(drawn[arm])} against "
                f"{energy_text(drawn[second])} for {second}, after {known} "
                f"{'run' if known == 1 else 'runs'}"
            )
        profile = merged_profile(tally.results.get(arm, ())) if problem.levers else ()
        lever = sweep_lever(problem, profile)
        return Decision(arm, stage, why, lever, _bound(problem, tally, step))

    def explain(self, problem: Problem, runs: Runs, rng: Generator) -> list[ArmBelief]:
        """Return the belief of every candidate, ascending; ``rng`` draws the chances."""
        tally = build_tally(problem, runs)
        step = plan_step(problem, tally)
        chance = chances(step.beliefs, rng) if step.arm is None else {step.arm: 1.0}
        verdicts = {arm: _verdict(step, tally, arm) for arm in problem.candidates}
        return explain_arms(tally, chance, verdicts)


def draw_j(beliefs: Mapping[int, CostBelief], rng: Generator) -> dict[int, float]:
    """Draw one mean cost for every arm; Thompson sampling chooses the cheapest draw."""
    return dict(zip(beliefs, rng.normal(*_moments(beliefs)).tolist(), strict=True))


def chances(beliefs: Mapping[int, CostBelief], rng: Generator) -> dict[int, float]:
    """Estimate each arm's chance of the cheapest draw from ``CHANCE_DRAWS`` draws."""
    drawn = rng.normal(*_moments(beliefs), size=(CHANCE_DRAWS, len(beliefs)))
    cheapest = drawn.argmin(axis=1)
    return {arm: float((cheapest == i).mean()) for i, arm in enumerate(beliefs)}


def _moments(beliefs: Mapping[int, CostBelief]) -> tuple[list[float], list[float]]:
    each = beliefs.values()
    return [belief.mean_j for belief in each], [belief.sd_of_mean_j for belief in each]


@dataclass(frozen=True)
class Pruning:
    """The state of the exploration."""

    next_arm: int | None  # ``None`` when it is over
    why: str  # why that one; empty when it is over
    survivors: tuple[int, ...]  # not pruned so far, ascending
    pruned: Mapping[int, str]  # why each other arm is out


def nearest(arms: Collection[int], arm: int) -> int:
    """Return the one of ``arms`` closest to ``arm`` by ratio, the smaller of two equally close."""
    return min(arms, key=lambda other: (max(other, arm) / min(other, arm), other))


def prune(
    arms: Sequence[int], default: int, results: RunsByArm, not_now: Collection[int] = ()
) -> Pruning:
    """Replay the exploration over the results so far (You et al., NSDI 2023, batch sizes).

    A round runs a starting arm, then smaller ones in descending order until one fails, then larger
    ones in ascending order until one fails. An arm that fails is pruned, with all arms beyond it; a
    starting arm that fails ends neither direction. The first round starts at the default (or the
    nearest arm, if memory rules it out), the second at the survivor that was cheapest in the first.

    Round ``k`` reads the ``k``-th result of each arm, in order of start; the order in which
    different arms finish does not matter. Arms ``not_now`` count as failed where the round would
    have to run them.
    """
    survivors = tuple(arms)
    pruned: dict[int, str] = {}
    for index in range(ROUNDS):
        if not survivors:
            break
        start = _starting_arm(survivors, default, index, results)
        failed, missing = _walk(survivors, start, index, results, not_now)
        pruned |= failed
        survivors = tuple(arm for arm in survivors if arm not in pruned)
        if missing is not None:
            arm, place = missing
            return Pruning(arm, f"round {index + 1}: {arm} {place}", survivors, pruned)
    return Pruning(None, "", survivors, pruned)


def _starting_arm(arms: Collection[int], default: int, index: int, results: RunsByArm) -> int:
    """Return the cheapest arm of the round before, or the nearest to the default without one."""
    costs = {arm: results[arm][index - 1].cost_j for arm in arms} if index else {}
    known = {arm: cost for arm, cost in costs.items() if cost is not None}
    return min(known, key=lambda arm: (known[arm], arm)) if known else nearest(arms, default)


def _walk(
    arms: Sequence[int], start: int, index: int, results: RunsByArm, not_now: Collection[int]
) -> tuple[dict[int, str], tuple[int, str] | None]:
    """Return the arms that a round prunes, and the arm whose result is missing and its place."""
    pruned: dict[int, str] = {}
    lower = [arm for arm in reversed(arms) if arm < start]
    upper = [arm for arm in arms if arm > start]
    for side, path in (("below", [start, *lower]), ("above", upper)):
        for step, arm in enumerate(path):
            runs = results.get(arm, ())
            if len(runs) <= index and arm not in not_now:
                place = "comes first" if arm == start else f"is next {side} {start}"
                return pruned, (arm, place)
            if len(runs) <= index or runs[index].status is not TrialStatus.REACHED:
                pruned[arm] = f"failed in round {index + 1}"
                if arm != start:
                    beyond = f"lies beyond {arm}, which failed in round {index + 1}"
                    pruned.update(dict.fromkeys(path[step + 1 :], beyond))
                    break
    return pruned, None


@dataclass(frozen=True)
class Step:
    """The next arm, or a draw among several."""

    arm: int | None  # ``None``: draw among ``beliefs``
    stage: Stage
    why: str  # empty for a draw
    survivors: tuple[int, ...]  # worth running; empty if only the default can be tried again
    out: Mapping[int, str]  # why each other arm is out
    beliefs: Mapping[int, CostBelief] = field(default_factory=dict)


def plan_step(problem: Problem, tally: Tally) -> Step:
    """Return the next step, up to the draw."""
    pruning = prune(tally.fitting, problem.default, tally.results, tally.not_now)
    if not pruning.survivors:  # everything has failed: what failed in this recurrence may run again
        pruning = prune(tally.fitting, problem.default, tally.results)
    out = dict(pruning.pruned)
    for arm in problem.candidates:
        if arm not in tally.fitting:
            ran_out = tally.out_of_memory.get(arm, 0) > 0
            memory = "ran out of memory" if ran_out else "larger than one that did not fit"
            out[arm] = tally.crashed.get(arm, memory)
    if pruning.next_arm is not None:
        return _explore(problem, tally, pruning, pruning.next_arm, out)
    for arm in pruning.survivors:
        if not any(map(_reached, tally.results[arm][-2:])):
            out[arm] = "failed in its last two runs"
    survivors = tuple(arm for arm in pruning.survivors if arm not in out)
    if not survivors:
        reasons = "; ".join(f"{arm} {reason}" for arm, reason in sorted(out.items()))
        why = f"no batch size is left, so the default, {problem.default}: {reasons}"
        return Step(problem.default, Stage.EXPLOIT, why, (), out)
    return _exploit(problem, tally, survivors, out)


def _explore(
    problem: Problem, tally: Tally, pruning: Pruning, arm: int, out: Mapping[int, str]
) -> Step:
    """Run the arm that the exploration needs, unless another recurrence explores."""
    survivors, why = pruning.survivors, pruning.why
    if not tally.exploring:
        if tally.out_of_memory.get(arm, 0):
            why += "; it ran out of memory once and is tried again"
        return Step(arm, Stage.EXPLORE, why, survivors, out)
    free = [
        other
        for other in survivors
        if other not in tally.not_now and all(map(_reached, tally.results.get(other, ())))
    ]
    costs_j = tally.costs_j
    known = {other: believe(costs_j[other]).mean_j for other in free if other in costs_j}
    why = f"no cost is known and the default is out; {why}"
    if known:
        arm = min(known, key=lambda other: (known[other], other))
        why = f"{arm} is the cheapest so far, {energy_text(known[arm])}"
    elif problem.default in free:
        arm = problem.default
        why = f"no cost is known yet, so the default, {arm}"
    return Step(arm, Stage.CONCURRENT, f"another recurrence is exploring; {why}", survivors, out)


def _exploit(
    problem: Problem, tally: Tally, survivors: tuple[int, ...], out: Mapping[int, str]
) -> Step:
    """Draw among the survivors once their costs are known."""
    arms = tuple(arm for arm in survivors if arm not in tally.not_now) or survivors
    failed = {arm: "failed earlier in this recurrence" for arm in survivors if arm not in arms}
    out = {**out, **failed}
    beliefs = {arm: believe(tally.costs_j[arm]) for arm in arms if arm in tally.costs_j}
    if not beliefs:
        arm = nearest(arms, problem.default)
        role = "the default" if arm == problem.default else "the nearest to the default"
        why = f"no cost is known of what is left, so {arm}, {role}"
        return Step(arm, Stage.EXPLOIT, why, survivors, out)
    for arm in arms:
        # Without a cost there is no belief to draw from: the arm runs until it shows one.
        if arm not in beliefs and len(tally.results[arm]) < UNKNOWN_COST_LIMIT:
            why = f"{arm} reached the target, but its cost is still unknown"
            return Step(arm, Stage.EXPLORE, why, survivors, out)
    out |= {arm: "never showed its cost" for arm in arms if arm not in beliefs}
    if len(beliefs) > 1:
        return Step(None, Stage.EXPLOIT, "", survivors, out, beliefs)
    ((arm, belief),) = beliefs.items()
    why = f"{arm} is the only batch size left, {energy_text(belief.mean_j)} on average"
    return Step(arm, Stage.EXPLOIT, why, survivors, out)


def _reached(run: Observation) -> bool:
    return run.status is TrialStatus.REACHED


def _bound(problem: Problem, tally: Tally, step: Step) -> Bound | None:
    """Return the cost at which to stop the trial; none where the bound itself may stop them all."""
    cheapest = min((min(costs_j) for costs_j in tally.costs_j.values()), default=None)
    if problem.cost_factor is None or cheapest is None or not step.survivors:
        return None
    return Bound(problem.cost_factor * cheapest)


def _verdict(step: Step, tally: Tally, arm: int) -> str:
    if arm == step.arm:
        return step.why
    if arm in step.out:
        return f"out: {step.out[arm]}"
    if arm not in step.beliefs:
        return "explored; may run again" if arm in tally.results else "not tried yet"
    best = min(step.beliefs, key=lambda other: (step.beliefs[other].mean_j, other))
    if arm == best:
        return "the cheapest on average"
    more_j = step.beliefs[arm].mean_j - step.beliefs[best].mean_j
    return f"{energy_text(more_j)} more than {best}"
