"""The power limits of a trial, as its supervisor uses them, and those of a trial without GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from typing_extensions import Self

    from zeusrun.lever import Lever
    from zeusrun.metrics.progress import EnergyBetween
    from zeusrun.trial import PowerPoint


@dataclass(frozen=True)
class LimitsReport:
    """What was measured under each limit, and the cost above holding the best one throughout."""

    profile: tuple[PowerPoint, ...] = ()
    extra_cost_j: float | None = None


UNMEASURED = LimitsReport()
"""The report of a trial that ended before anything was measured, or has no GPU."""


class HeldLimits(Protocol):
    """Holds limits while it is entered: those of this host, or of several as one."""

    @property
    def levers(self) -> tuple[Lever, ...]:
        """The limits that every GPU accepts, ascending."""

    @property
    def refused(self) -> str | None:
        """Why the limits are not changed."""

    @property
    def taken(self) -> str | None:
        """A sentence on a limit that somebody else has set meanwhile."""

    @property
    def unrestored(self) -> str | None:
        """What could not be restored."""

    def __enter__(self) -> Self:
        """Lock the GPUs; raises ``ZeusrunError``."""

    def __exit__(self, *error: object) -> None:
        """Restore the original limits."""

    def check(self, lever: Lever) -> None:
        """Raise ``DeviceError`` if a GPU does not take a limit."""

    def hold(self, lever: Lever, trial: str) -> None:
        """Hold a limit on every GPU; raises ``DeviceError``."""

    def restore(self) -> None:
        """Restore the original limits; raises ``DeviceError``."""

    def keep_guarded(self) -> None:
        """Keep the guard running; raises ``DeviceError``."""


class Limits(Protocol):
    """Holds the limits that a trial wants, and measures what they are worth."""

    @property
    def held(self) -> Lever | None:
        """The limit that is held; ``None``: the original one."""

    @property
    def probing(self) -> bool:
        """Whether a limit is held only to be measured."""

    @property
    def stepped_under(self) -> AbstractSet[Lever | None]:
        """The limits under which steps were taken so far."""

    def begin(self) -> None:
        """Hold the fixed limit, if there is one, before anything starts; raises ``DeviceError``."""

    def advance(self, now_t: float, energy_between: EnergyBetween, *, wait: bool) -> None:
        """Hold the limit that is wanted now."""

    def wind_down(self, *, at_once: bool) -> None:
        """Try no more limits, because the training is to end; ``at_once``: restore them now."""

    def restore(self) -> None:
        """Restore the original limits."""

    def report(self, checked: PowerPoint | None) -> LimitsReport:
        """Return what probes have shown, else what the speed check has (``checked``)."""


class NoLimits:
    """The limits of a trial without GPUs."""

    held: Lever | None = None
    probing = False
    stepped_under: AbstractSet[Lever | None] = frozenset([None])

    def begin(self) -> None:
        """Hold nothing."""

    def advance(self, now_t: float, energy_between: EnergyBetween, *, wait: bool) -> None:
        """Want nothing."""

    def wind_down(self, *, at_once: bool) -> None:
        """Try nothing."""

    def restore(self) -> None:
        """Restore nothing."""

    def report(self, checked: PowerPoint | None) -> LimitsReport:
        """Return what the speed check has shown."""
        return LimitsReport(() if checked is None else (checked,))
