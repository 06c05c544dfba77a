"""All that one decision of ``auto`` rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.bandit.auto.acquisition import values_of_trying
from zeusrun.bandit.auto.beliefs import Array, Beliefs, believe
from zeusrun.bandit.auto.evidence import Evidence, gather
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.observation import Run
    from zeusrun.bandit.problem import Problem


@dataclass(frozen=True)
class Position:
    """All that a decision rests on.

    Attributes:
        problem: What is being decided.
        evidence: What the runs say.
        beliefs: What is made of it.
        recurrences: How many have reached the target.
        values: What trying each arm is worth, in runs of the incumbent; ``None`` while no cost
            is known.
    """

    problem: Problem
    evidence: Evidence
    beliefs: Beliefs
    recurrences: int
    values: Array | None


def assess(problem: Problem, runs: Sequence[Run]) -> Position:
    """Work out the position from all runs of the job, oldest first."""
    evidence = gather(problem, runs)
    beliefs = believe(problem, evidence)
    recurrences = sum(run.status is TrialStatus.REACHED for run in runs)
    values = None
    if beliefs.incumbent_cost_j is not None:
        usable = [arm for arm in evidence.fitting if arm not in evidence.failed_now]
        values = values_of_trying(beliefs, usable, evidence.in_flight, recurrences)
    return Position(problem, evidence, beliefs, recurrences, values)
