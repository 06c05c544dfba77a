"""What to do about a running trial. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

from zeusrun.bandit.cost import energy_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.launcher.progress import Progress


class StopLevel(IntEnum):
    """How firmly a run is ended; it only ever rises."""

    NONE = 0
    TELL = 1  # the stop file: the script ends at its next epoch
    TERMINATE = 2  # SIGTERM to torchrun, SIGKILL only after its grace
    KILL = 3  # at once


class StopCause(str, Enum):
    """Why a run is stopped."""

    TARGET = "target"
    HOPELESS = "hopeless"
    TIMEOUT = "timeout"
    SIGNAL = "signal"


@dataclass(frozen=True)
class StopOrder:
    """How firmly to stop, and why."""

    level: StopLevel
    cause: StopCause
    reason: str


@dataclass(frozen=True)
class Bounds:
    """What a trial may take.

    Attributes:
        cost_bound_j: Cost past which it is hopeless; ``None`` for no bound.
        timeout_s: Seconds since launch; ``None`` for no limit.
        stop_at_target: Whether the script is told to stop at the target.
    """

    cost_bound_j: float | None
    timeout_s: float | None
    stop_at_target: bool


def supervise(progress: Progress, bounds: Bounds, signals: Sequence[int]) -> StopOrder | None:
    """Decide whether the run goes on (``None``) or how it stops.

    Args:
        progress: Now.
        bounds: What it may take.
        signals: Signals that zeusrun has received, in order.
    """
    if signals:
        level = StopLevel.TERMINATE if len(signals) == 1 else StopLevel.KILL
        name = signal.Signals(signals[0]).name
        return StopOrder(level, StopCause.SIGNAL, f"{name} to zeusrun")
    if bounds.timeout_s is not None and progress.now_t - progress.launched_t > bounds.timeout_s:
        reason = f"timed out after {bounds.timeout_s:g} s"
        return StopOrder(StopLevel.TERMINATE, StopCause.TIMEOUT, reason)
    if progress.reached is not None:
        if bounds.stop_at_target:
            return StopOrder(StopLevel.TELL, StopCause.TARGET, "target reached")
        return None
    cost_j, bound_j = progress.cost_j, bounds.cost_bound_j
    if cost_j is not None and bound_j is not None and cost_j > bound_j:
        reason = f"its cost passed the bound of {energy_text(bound_j)}"
        return StopOrder(StopLevel.TERMINATE, StopCause.HOPELESS, reason)
    return None
