"""Policy ``fixed``: always the default batch size; only the power limit is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.bandit.power import first_limit_w, next_limit_w
from zeusrun.bandit.summary import summarise
from zeusrun.bandit.tally import build_ledger
from zeusrun.trial import Decision, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator

    from zeusrun.bandit.observation import Run, Running
    from zeusrun.bandit.problem import ArmBelief, Problem
    from zeusrun.trial import PowerPoint


class Fixed:
    """The cautious choice for a job's first weeks.

    It never stops a trial: there is nothing else that it would run instead.
    """

    name = "fixed"

    def choose(self, problem: Problem, runs: Sequence[Run], rng: Generator) -> Decision:
        """Choose the default batch size."""
        limit_w = first_limit_w(problem, runs, problem.default)
        why = f"{problem.default} is the default, and policy fixed never leaves it"
        return Decision(problem.default, Stage.EXPLOIT, why, limit_w)

    def next_limit_w(
        self, problem: Problem, decision: Decision, profile: Sequence[PowerPoint]
    ) -> float | None:
        """Return the next limit of a short walk, or its choice."""
        return next_limit_w(problem, profile, decision.power_limit_w)

    def review(self, problem: Problem, decision: Decision, running: Running) -> str | None:
        """Go on."""
        return None

    def explain(self, problem: Problem, runs: Sequence[Run], rng: Generator) -> list[ArmBelief]:
        """Return what the runs of every candidate say."""
        ledger = build_ledger(problem, runs)
        return [
            summarise(
                arm,
                ledger.results.get(arm, ()),
                ledger.costs_j.get(arm, ()),
                out_of_memory=ledger.out_of_memory.get(arm, 0),
                chance=float(arm == problem.default),
                verdict="next: the default" if arm == problem.default else "never chosen",
            )
            for arm in problem.candidates
        ]
