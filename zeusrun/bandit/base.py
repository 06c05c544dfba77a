"""Base classes of policies: how they search for a power limit, and when they stop a trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.bandit.power import next_lever, sweep_lever
from zeusrun.bandit.stopping import hopeless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.observation import Running
    from zeusrun.bandit.problem import Problem
    from zeusrun.lever import Lever
    from zeusrun.trial import Decision, PowerPoint


class WalkingPolicy:
    """Measures few power limits on the way to the best one."""

    def next_lever(
        self, problem: Problem, decision: Decision, profile: Sequence[PowerPoint]
    ) -> Lever | None:
        """Return the next limit of the walk, or its result."""
        return next_lever(problem, profile, decision.lever)

    def review(self, problem: Problem, decision: Decision, running: Running) -> str | None:
        """Return why the trial cannot reach the target within its bound, or ``None``."""
        return hopeless(decision.bound, problem.mode, running)


class SweepingPolicy(WalkingPolicy):
    """Measures every power limit."""

    def next_lever(
        self, problem: Problem, decision: Decision, profile: Sequence[PowerPoint]
    ) -> Lever | None:
        """Return the next limit of the sweep, or the best one of all."""
        return sweep_lever(problem, profile)
