"""All that a report shows of one job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zeusrun.bandit.problem import ArmBelief
    from zeusrun.view.report.facts import JobFacts
    from zeusrun.view.report.power import PowerFacts


@dataclass(frozen=True)
class Belief:
    """What the policy believes and would choose; or why that is unknown."""

    arms: tuple[ArmBelief, ...] = ()
    policy: str = ""
    missing: str | None = None  # a sentence


@dataclass(frozen=True)
class JobReport:
    """All that the page shows of one job."""

    facts: JobFacts
    belief: Belief = field(default_factory=Belief)
    power: tuple[PowerFacts, ...] = ()
    stalls: tuple[tuple[str, str], ...] = ()  # a run, and what was seen
