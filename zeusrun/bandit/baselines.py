"""How policies search for a power limit, and the simple policies ``fixed`` and ``grid``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.bandit.power import first_lever, next_lever, sweep_lever
from zeusrun.bandit.problem import merged_profile
from zeusrun.bandit.stopping import hopeless
from zeusrun.bandit.tally import Tally, build_tally, explain_arms, likeliest_arm
from zeusrun.cost import energy_text
from zeusrun.trial import Bound, Decision, Stage, TrialStatus

if TYPE_CHECKING:
    from numpy.random import Generator

    from zeusrun.bandit.problem import ArmBelief, Problem, Profile, Running, Runs
    from zeusrun.lever import Lever


class WalkingPolicy:
    """Measures few power limits on the way to the best one."""

    def next_lever(self, problem: Problem, decision: Decision, profile: Profile) -> Lever | None:
        """Return the next limit of the walk, or its result."""
        return next_lever(problem, profile, decision.lever)

    def review(self, problem: Problem, decision: Decision, running: Running) -> str | None:
        """Return why the trial cannot reach the target within its bound, or ``None``."""
        return hopeless(decision.bound, problem.mode, running)


class SweepingPolicy(WalkingPolicy):
    """Measures every power limit."""

    def next_lever(self, problem: Problem, decision: Decision, profile: Profile) -> Lever | None:
        """Return the next limit of the sweep, or the best one of all."""
        return sweep_lever(problem, profile)


class Fixed(WalkingPolicy):
    """For a job's first, cautious weeks. It never stops a trial: nothing else would run instead."""

    name = "fixed"

    def choose(self, problem: Problem, runs: Runs, rng: Generator) -> Decision:
        """Choose the default batch size."""
        lever = first_lever(problem, runs, problem.default)
        why = f"{problem.default} is the default, and policy fixed never leaves it"
        return Decision(problem.default, Stage.EXPLOIT, why, lever)

    def explain(self, problem: Problem, runs: Runs, rng: Generator) -> list[ArmBelief]:
        """Return what the runs of every candidate show."""
        verdicts = dict.fromkeys(problem.candidates, "never chosen")
        verdicts[problem.default] = "the default"
        return explain_arms(build_tally(problem, runs), {problem.default: 1.0}, verdicts)


class Grid(SweepingPolicy):
    """Runs the default first, then the others in order.

    It does not try a failed batch size again unless none has reached the target. The last attempt
    of a recurrence goes to the one that has reached it most reliably.
    """

    name = "grid"

    def choose(self, problem: Problem, runs: Runs, rng: Generator) -> Decision:
        """Choose the next batch size of the grid, or the cheapest once it is complete."""
        tally = build_tally(problem, runs)
        arm, stage, why = _next(problem, tally, runs)
        profile = merged_profile([run for run in runs if run.arm == arm])
        bound = None
        if problem.cost_factor is not None and not tally.not_now.issuperset(tally.costs_j):
            cheapest = min(sum(costs_j) / len(costs_j) for costs_j in tally.costs_j.values())
            bound = Bound(problem.cost_factor * cheapest)
        return Decision(arm, stage, why, sweep_lever(problem, profile), bound)

    def explain(self, problem: Problem, runs: Runs, rng: Generator) -> list[ArmBelief]:
        """Return what the runs of every candidate show."""
        tally = build_tally(problem, runs)
        chosen, _, why = _next(problem, tally, runs)
        verdicts = {arm: _verdict(tally, arm) for arm in problem.candidates}
        return explain_arms(tally, {chosen: 1.0}, verdicts | {chosen: why})


def _next(problem: Problem, tally: Tally, runs: Runs) -> tuple[int, Stage, str]:
    likeliest = likeliest_arm(tally)
    if likeliest is not None and problem.last_attempt:
        return likeliest[0], Stage.RETRY, f"this is the last attempt allowed, and {likeliest[1]}"
    busy = {run.arm for run in runs if run.status is TrialStatus.DISPATCHED}
    tried = {*tally.results, *tally.out_of_memory, *tally.not_now}
    order = sorted(tally.fitting, key=lambda arm: (arm != problem.default, arm))
    for arm in order:
        if arm not in tried and arm not in busy:
            return arm, Stage.EXPLORE, f"{arm} is the next of the grid"
    means = {arm: sum(costs) / len(costs) for arm, costs in tally.costs_j.items()}
    free = {arm: mean for arm, mean in means.items() if arm not in tally.not_now} or means
    if free:
        arm = min(free, key=lambda arm: (free[arm], arm))
        return arm, Stage.EXPLOIT, f"{arm} is the cheapest, {energy_text(free[arm])} on average"
    if likeliest is not None:
        return likeliest[0], Stage.EXPLOIT, f"no cost is known yet, and {likeliest[1]}"
    left = [arm for arm in order if arm not in tally.not_now] or order or [problem.default]
    arm = min(left, key=lambda arm: len(tally.results.get(arm, ())))
    return arm, Stage.EXPLORE, f"no cost is known yet, and {arm} has failed least often"


def _verdict(tally: Tally, arm: int) -> str:
    if arm not in tally.fitting:
        return f"out: {tally.crashed.get(arm, 'memory')}"
    if arm in tally.costs_j:
        return "tried, and more expensive"
    return "out: it failed" if arm in tally.results else "not tried yet"
