"""What the policy of a job believes, on the hardware of its newest runs, wherever this runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.analysis.cost_baseline import has_cost
from zeusrun.bandit.control import explain_next
from zeusrun.bandit.registry import create_policy
from zeusrun.bandit.reinterpret import read_history
from zeusrun.errors import ZeusrunError
from zeusrun.launcher.context import Submission
from zeusrun.launcher.problem import build_problem
from zeusrun.launcher.processes.command import Torchrun
from zeusrun.view.explain import describe_choice, in_samples
from zeusrun.view.report.facts import Belief

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zeusrun.analysis.curve_unit import CurveUnit
    from zeusrun.history.base import History
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.trial import Trial


def build_belief(spec: JobSpec, store: History, trials: Sequence[Trial], home: Path) -> Belief:
    """Return what the policy believes after the newest trials, oldest first; at least one."""
    usual = next((trial for trial in reversed(trials) if has_cost(trial)), trials[-1])
    try:
        submission = Submission(
            spec=spec,
            history=store,
            policy=create_policy(spec.policy.name),
            devices=(),
            world_size=usual.world_size,
            torchrun=Torchrun((), "", frozenset()),  # nothing is launched
            home=home,
            environment={},
        )
        problem = replace(
            build_problem(submission, trials),
            gpu_model=usual.gpu_model,
            gpu_count=usual.gpu_count,
            max_power_w=usual.max_power_w,
        )
        problem, runs = read_history(problem, trials)
        rng = np.random.default_rng(spec.policy.seed)
        arms = explain_next(submission.policy, problem, runs, rng)
        sentences = describe_choice(submission, problem, runs, arms)
    except ZeusrunError as error:
        return unknown_belief(error)
    shown = tuple(in_samples(arms, problem.unit))
    unit: CurveUnit = "samples" if problem.unit else "epochs"
    return Belief(shown, tuple(sentences), submission.policy.name, unit)


def unknown_belief(error: ZeusrunError) -> Belief:
    """Return a belief that says why it is unknown."""
    return Belief(missing=f"What the policy believes is unknown: {error}")
