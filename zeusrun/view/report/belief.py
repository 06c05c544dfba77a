"""What the policy of a job believes, on the hardware of its newest runs, wherever this runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zeusrun.analysis.usual import has_cost
from zeusrun.bandit.registry import create_policy, explain_next
from zeusrun.bandit.reinterpret import read_history
from zeusrun.choice.inputs import Chooser, Machine
from zeusrun.choice.problem import build_problem, next_recurrence
from zeusrun.errors import ZeusrunError
from zeusrun.view.explain import describe_choice, in_samples
from zeusrun.view.report.facts import Belief

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.analysis.curves import CurveUnit
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.trial import Trial


def build_belief(spec: JobSpec, trials: Sequence[Trial]) -> Belief:
    """Return what the policy believes after the newest trials, oldest first; at least one."""
    usual = next((trial for trial in reversed(trials) if has_cost(trial)), trials[-1])
    machine = Machine(
        world_size=usual.world_size,
        gpu_model=usual.gpu_model,
        gpu_count=usual.gpu_count,
        max_power_w=usual.max_power_w,
    )
    try:
        policy = create_policy(spec.policy.name)
        problem = build_problem(spec, machine, trials, next_recurrence(trials))
        problem, runs = read_history(problem, trials)
        rng = np.random.default_rng(spec.policy.seed)
        arms = explain_next(policy, problem, runs, rng)
        sentences = describe_choice(Chooser(spec, policy), problem, runs, arms)
    except ZeusrunError as error:
        return unknown_belief(error)
    shown = tuple(in_samples(arms, problem.unit))
    unit: CurveUnit = "samples" if problem.unit else "epochs"
    return Belief(shown, tuple(sentences), policy.name, unit)


def unknown_belief(error: ZeusrunError) -> Belief:
    """Return a belief that says why it is unknown."""
    return Belief(missing=f"What the policy believes is unknown: {error}")
