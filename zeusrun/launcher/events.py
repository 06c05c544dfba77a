"""The events of a submit, as values for the terminal, JSON and notices; ``Messages`` emits some."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from zeusrun.analysis.usual import UNKNOWN, Usual

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeusrun.metrics.progress import Progress
    from zeusrun.trial import Trial


@dataclass(frozen=True)
class Noted:
    """A sentence to read."""

    text: str
    needed: bool = False  # also with --quiet


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


@dataclass(frozen=True)
class Messages:
    """Shows notes and warnings; keeps the warnings, which are recorded with the trial."""

    emit: Emit
    warnings: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)  # of the warnings that are shown once

    def note(self, text: str) -> None:
        """Show a sentence to read."""
        self.emit(Noted(text))

    def warn(self, text: str) -> None:
        """Show a sentence that a user should act on, and keep it."""
        self.warnings.append(text)
        self.emit(Warned(text))

    def warn_once(self, kind: str, text: str) -> None:
        """Warn, unless something of this kind was warned of before."""
        if kind not in self.kinds:
            self.kinds.add(kind)
            self.warn(text)

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """If a file of the run or a source cannot be read, warn once and continue without it."""
        try:
            yield
        except OSError as error:
            why = error.strerror or str(error) or type(error).__name__
            where = error.filename or name
            self.warn_once(str(where), f"{where} cannot be read: {why}; zeusrun tries again")
