"""What happens during a submit, as values that a terminal, JSON or a notice can consume.

A submit passes each event to one function, in its main thread. If that function raises, the
training is ended and recorded, then the exception propagates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from zeusrun.metrics.progress import Progress
    from zeusrun.trial import Trial


@dataclass(frozen=True)
class Noted:
    """A sentence worth reading."""

    text: str


@dataclass(frozen=True)
class Warned:
    """A sentence that a user should act on."""

    text: str


@dataclass(frozen=True)
class FoundLost:
    """Trials whose launchers have died; they are recorded as ``LOST`` from now on."""

    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class TrialStarts:
    """A trial is on disk and about to start; its cost bound is in joules, ``None`` for no bound."""

    trial: Trial
    cost_bound_j: float | None


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
