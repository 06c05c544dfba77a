"""Control runs: every Nth recurrence runs the default, so that what others save stays known.

They take place under every policy, in submits and in simulations alike.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.bandit.auto.evidence import gather
from zeusrun.bandit.observation import merged_profile
from zeusrun.bandit.power import first_lever
from zeusrun.trial import Decision, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator

    from zeusrun.bandit.observation import Runs
    from zeusrun.bandit.problem import ArmBelief, Problem
    from zeusrun.bandit.registry import Policy
    from zeusrun.trial import Trial


def choose_control(
    policy: Policy, problem: Problem, runs: Runs, made: Sequence[Trial] = ()
) -> Decision | None:
    """Return the control run that is due; ``None``: the policy chooses.

    One is due as the first attempt of every recurrence that ``Problem.control`` divides, unless
    memory or crashes of the script rule out the default. ``made`` are the attempts of the
    recurrence so far. It has no bound, and the power limits that the policy tries.
    """
    if problem.control is None or problem.recurrence % problem.control or made:
        return None
    default = problem.default
    has_begun = any(run.recurrence == problem.recurrence for run in runs)
    if has_begun or default not in gather(problem, runs).fitting:
        return None
    why = (
        f"one recurrence in {problem.control} runs the default (policy.control), so that what "
        "other batch sizes save stays known"
    )
    decision = Decision(default, Stage.CONTROL, why, first_lever(problem, runs, default))
    if problem.levers:
        profile = merged_profile([run for run in runs if run.arm == default])
        lever = policy.next_lever(problem, decision, profile)
        decision = replace(decision, lever=lever)
    return decision


def explain_next(policy: Policy, problem: Problem, runs: Runs, rng: Generator) -> list[ArmBelief]:
    """Return what a policy believes of every candidate; a control run that is due is the next."""
    beliefs = policy.explain(problem, runs, rng)
    control = choose_control(policy, problem, runs)
    if control is None:
        return beliefs
    return [
        replace(belief, chance=1.0, verdict=control.why)
        if belief.global_batch_size == control.global_batch_size
        else replace(belief, chance=0.0)
        for belief in beliefs
    ]
