"""What happens during a submit, as values for the terminal, JSON and notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from zeusrun.analysis.usual import UNKNOWN, Usual

if TYPE_CHECKING:
    from zeusrun.metrics.progress import Progress
    from zeusrun.trial import Trial


@dataclass(frozen=True)
class Noted:
    """A sentence to read."""

    text: str


@dataclass(frozen=True)
class Warned:
    """A sentence that a user should act on."""

    text: str


@dataclass(frozen=True)
class FoundLost:
    """Trials whose launchers have died, now recorded as ``LOST``."""

    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class TrialStarts:
    """A trial is on disk and about to start; its cost bound is in joules, ``None`` for no bound.

    ``usual`` is what past runs like it took; ``instrumented``: its ranks say when they start.
    """

    trial: Trial
    cost_bound_j: float | None
    usual: Usual = UNKNOWN
    instrumented: bool = True


@dataclass(frozen=True)
class BoundChanged:
    """The running trial has another cost bound, in joules; ``None`` for no bound."""

    cost_bound_j: float | None


@dataclass(frozen=True)
class Printed:
    """Lines that a rank printed."""

    rank: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Advanced:
    """The state of the running trial, about ten times a second."""

    progress: Progress


@dataclass(frozen=True)
class TrialEnded:
    """A trial is recorded; ``replaced`` if a speed check ended it in favour of another one."""

    trial: Trial
    replaced: bool


SubmitEvent: TypeAlias = (
    Noted | Warned | FoundLost | TrialStarts | BoundChanged | Printed | Advanced | TrialEnded
)
Emit: TypeAlias = Callable[[SubmitEvent], None]
"""Gets each event in the main thread. If it raises, zeusrun ends and records the training."""
