"""Policy ``zeus``: pruning exploration, then Gaussian Thompson sampling.

After You, Chung and Chowdhury, "Zeus: Understanding and Optimizing GPU Energy Consumption of DNN
Training", NSDI 2023, the section on batch size optimisation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.bandit.cost import energy_text
from zeusrun.bandit.ledger import build_ledger
from zeusrun.bandit.plan import Plan, build_plan
from zeusrun.bandit.problem import ArmBelief
from zeusrun.bandit.thompson import believe, chances, draw_j
from zeusrun.trial import Decision, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator

    from zeusrun.bandit.problem import Problem
    from zeusrun.trial import Trial


class Zeus:
    """The policy of the NSDI 2023 paper.

    Exploration is replayed over all comparable trials (see ``pruning.prune``) and never begins
    anew: ``Problem.window`` limits only the costs per arm that Thompson sampling and the bound
    look back on, so an arm once pruned stays so. While another recurrence's exploration is in
    flight, a recurrence runs the cheapest arm known instead. Thompson sampling needs no such
    care, it draws anew each time.

    Every method takes all trials of the job, oldest first, and calls ``comparable`` itself.
    """

    name = "zeus"

    def choose(self, problem: Problem, trials: Sequence[Trial], rng: Generator) -> Decision:
        """Choose the batch size of the next trial; ``rng`` is used by Thompson sampling alone."""
        plan = build_plan(problem, build_ledger(problem, trials))
        if plan.arm is not None:
            return Decision(plan.arm, plan.stage, plan.why)
        drawn = draw_j(plan.beliefs, rng)
        arm, second = sorted(drawn, key=lambda arm: (drawn[arm], arm))[:2]
        runs = plan.beliefs[arm].runs
        why = (
            f"{arm} drew {energy_text(drawn[arm])} against {energy_text(drawn[second])} "
            f"for {second} over {runs} {'run' if runs == 1 else 'runs'}"
        )
        return Decision(arm, plan.stage, why)

    def cost_bound_j(self, problem: Problem, trials: Sequence[Trial]) -> float | None:
        """Return the cost at which to stop the trial: ``cost_factor`` times the cheapest known.

        Returns:
            Joules; ``None`` when ``cost_factor`` is, when no reached trial has a known cost, or
            when no arm is left: then the bound itself may be what stops them all.
        """
        ledger = build_ledger(problem, trials)
        cheapest = min((min(costs_j) for costs_j in ledger.costs_j.values()), default=None)
        if problem.cost_factor is None or cheapest is None:
            return None
        return problem.cost_factor * cheapest if build_plan(problem, ledger).survivors else None

    def explain(self, problem: Problem, trials: Sequence[Trial], rng: Generator) -> list[ArmBelief]:
        """Return the belief of every candidate, ascending; chances come from ``rng``."""
        ledger = build_ledger(problem, trials)
        plan = build_plan(problem, ledger)
        chance = chances(plan.beliefs, rng) if plan.arm is None else {plan.arm: 1.0}
        beliefs = []
        for arm in problem.candidates:
            results, costs_j = ledger.results.get(arm, ()), ledger.costs_j.get(arm)
            belief = believe(costs_j) if costs_j else None
            beliefs.append(
                ArmBelief(
                    global_batch_size=arm,
                    trials=len(results) + ledger.out_of_memory.get(arm, 0),
                    reached=sum(trial.status is TrialStatus.REACHED for trial in results),
                    mean_cost_j=belief.mean_j if belief else None,
                    sd_cost_j=belief.sd_j if belief else None,
                    chance=chance.get(arm, 0.0),
                    verdict=_verdict(plan, arm, tried=bool(results)),
                )
            )
        return beliefs


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
