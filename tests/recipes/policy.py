"""A policy that always chooses the largest batch size."""

from __future__ import annotations

from zeusrun.bandit.problem import ArmBelief
from zeusrun.trial import Decision, Stage


class Largest:
    name = "largest"

    def choose(self, problem, runs, rng):
        del runs, rng
        return Decision(problem.candidates[-1], Stage.EXPLORE, "it is the largest")

    def next_lever(self, problem, decision, profile):
        """Leave the power limit as it is."""

    def review(self, problem, decision, running):
        """Let every run continue."""

    def explain(self, problem, runs, rng):
        del runs, rng
        return [
            ArmBelief(global_batch_size=arm, trials=0, reached=0, chance=0.0, verdict="")
            for arm in problem.candidates
        ]
