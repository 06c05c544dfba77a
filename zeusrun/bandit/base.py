"""Base classes of policies: how they search for a power limit, and when they stop a trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.bandit.power import next_limit_w, sweep_limit_w
from zeusrun.bandit.stopping import hopeless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.observation import Running
    from zeusrun.bandit.problem import Problem
    from zeusrun.trial import Decision, PowerPoint


class WalkingPolicy:
    """Measures few power limits on the way to the best one."""

    def next_limit_w(
        self, problem: Problem, decision: Decision, profile: Sequence[PowerPoint]
    ) -> float | None:
        """Return the next limit of the walk, or its result."""
        return next_limit_w(problem, profile, decision.power_limit_w)

    def review(self, problem: Problem, decision: Decision, running: Running) -> str | None:
        """Return why the trial cannot reach the target within its bound, or ``None``."""
        return hopeless(decision.bound, problem.mode, running)


class SweepingPolicy(WalkingPolicy):
    """Measures every power limit."""

    def next_limit_w(
        self, problem: Problem, decision: Decision, profile: Sequence[PowerPoint]
    ) -> float | None:
        """Return the next limit of the sweep, or the best one of all."""
        return sweep_limit_w(problem, profile)
