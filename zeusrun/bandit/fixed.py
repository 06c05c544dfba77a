"""Policy ``fixed``: always runs the default batch size, and chooses only the power limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.bandit.base import WalkingPolicy
from zeusrun.bandit.power import first_lever
from zeusrun.bandit.tally import build_tally, explain_arms
from zeusrun.trial import Decision, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator

    from zeusrun.bandit.observation import Run
    from zeusrun.bandit.problem import ArmBelief, Problem


class Fixed(WalkingPolicy):
    """For a job's first, cautious weeks. It never stops a trial: nothing else would run instead."""

    name = "fixed"

    def choose(self, problem: Problem, runs: Sequence[Run], rng: Generator) -> Decision:
        """Choose the default batch size."""
        lever = first_lever(problem, runs, problem.default)
        why = f"{problem.default} is the default, and policy fixed never leaves it"
        return Decision(problem.default, Stage.EXPLOIT, why, lever)

    def explain(self, problem: Problem, runs: Sequence[Run], rng: Generator) -> list[ArmBelief]:
        """Return what the runs of every candidate show."""
        verdicts = dict.fromkeys(problem.candidates, "never chosen")
        verdicts[problem.default] = "next: the default"
        return explain_arms(build_tally(problem, runs), {problem.default: 1.0}, verdicts)
