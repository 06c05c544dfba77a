"""Policy ``zeus``: pruning exploration, then Gaussian Thompson sampling.

After You, Chung and Chowdhury, "Zeus: Understanding and Optimizing GPU Energy Consumption of DNN
Training", NSDI 2023, the section on batch size optimisation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.bandit.observation import merged_profile
from zeusrun.bandit.power import sweep_limit_w
from zeusrun.bandit.stopping import hopeless
from zeusrun.bandit.summary import summarise
from zeusrun.bandit.tally import Ledger, build_ledger, likeliest_arm
from zeusrun.bandit.zeus.plan import Plan, build_plan
from zeusrun.bandit.zeus.thompson import chances, draw_j
from zeusrun.cost import energy_text
from zeusrun.trial import Bound, Decision, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator

    from zeusrun.bandit.observation import Run, Running
    from zeusrun.bandit.problem import ArmBelief, Problem
    from zeusrun.trial import PowerPoint


class Zeus:
    """The policy of the NSDI 2023 paper.

    Exploration is replayed over all comparable trials (see ``pruning.prune``) and never begins
    anew: ``Problem.window`` limits only the costs per arm that Thompson sampling and the bound
    look back on, so an arm once pruned stays so. While another recurrence's exploration is in
    flight, a recurrence runs the cheapest arm known instead. Thompson sampling needs no such
    care, it draws anew each time. Not of the paper: the last attempt of a recurrence goes to the
    arm that has reached the target most reliably.

    Its bound is ``cost_factor`` times the cheapest known cost, its power limits a full sweep.
    """

    name = "zeus"

    def choose(self, problem: Problem, runs: Sequence[Run], rng: Generator) -> Decision:
        """Choose the batch size of the next trial; ``rng`` is used by Thompson sampling alone."""
        ledger = build_ledger(problem, runs)
        plan = build_plan(problem, ledger)
        arm, stage, why = plan.arm, plan.stage, plan.why
        likeliest = likeliest_arm(ledger) if problem.last_attempt else None
        if likeliest is not None:
            arm, stage, why = likeliest[0], Stage.RETRY, likeliest[1]
        if arm is None:
            drawn = draw_j(plan.beliefs, rng)
            arm, second = sorted(drawn, key=lambda arm: (drawn[arm], arm))[:2]
            known = plan.beliefs[arm].runs
            why = (
                f"{arm} drew a cost of {energy_text(drawn[arm])} against "
                f"{energy_text(drawn[second])} for {second}, after {known} "
                f"{'run' if known == 1 else 'runs'}"
            )
        profile = merged_profile(ledger.results.get(arm, ())) if problem.power_limits_w else ()
        limit_w = sweep_limit_w(problem, profile)
        return Decision(arm, stage, why, limit_w, _bound(problem, ledger, plan))

    def next_limit_w(
        self, problem: Problem, decision: Decision, profile: Sequence[PowerPoint]
    ) -> float | None:
        """Return the next limit of the sweep, or the best of a complete one."""
        return sweep_limit_w(problem, profile)

    def review(self, problem: Problem, decision: Decision, running: Running) -> str | None:
        """Return why the trial is to be stopped: its cost passed the bound."""
        return hopeless(decision.bound, problem.mode, running)

    def explain(self, problem: Problem, runs: Sequence[Run], rng: Generator) -> list[ArmBelief]:
        """Return the belief of every candidate, ascending; chances come from ``rng``."""
        ledger = build_ledger(problem, runs)
        plan = build_plan(problem, ledger)
        chance = chances(plan.beliefs, rng) if plan.arm is None else {plan.arm: 1.0}
        return [
            summarise(
                arm,
                ledger.results.get(arm, ()),
                ledger.costs_j.get(arm, ()),
                out_of_memory=ledger.out_of_memory.get(arm, 0),
                chance=chance.get(arm, 0.0),
                verdict=_verdict(plan, arm, tried=arm in ledger.results),
            )
            for arm in problem.candidates
        ]


def _bound(problem: Problem, ledger: Ledger, plan: Plan) -> Bound | None:
    """The cost at which to stop the trial; none where the bound may be what stops them all."""
    cheapest = min((min(costs_j) for costs_j in ledger.costs_j.values()), default=None)
    if problem.cost_factor is None or cheapest is None or not plan.survivors:
        return None
    return Bound(problem.cost_factor * cheapest)


def _verdict(plan: Plan, arm: int, *, tried: bool) -> str:
    if arm == plan.arm:
        return f"next: {plan.why}"
    if arm in plan.out:
        return f"out: {plan.out[arm]}"
    if arm not in plan.beliefs:
        return "explored; may come again" if tried else "waits for its turn"
    best = min(plan.beliefs, key=lambda other: (plan.beliefs[other].mean_j, other))
    if arm == best:
        return "the cheapest on average"
    dearer_j = plan.beliefs[arm].mean_j - plan.beliefs[best].mean_j
    return f"{energy_text(dearer_j)} dearer than {best}"
