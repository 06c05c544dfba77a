"""What to do about a running trial. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

from zeusrun.cost import energy_text
from zeusrun.launcher.processes.signals import PREEMPTING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.metrics.progress import Progress
    from zeusrun.trial import Trial


EPOCHS_WITHOUT_METRIC = 3  # one or two may be evaluated without it


class StopLevel(IntEnum):
    """How firmly a run is ended; it only ever rises."""

    NONE = 0
    TELL = 1  # the stop file: the script ends at its next epoch
    TERMINATE = 2  # SIGTERM to the ranks, then to torchrun; SIGKILL after the grace
    KILL = 3  # at once


class StopCause(str, Enum):
    """Why a run is stopped."""

    TARGET = "target"
    HOPELESS = "hopeless"
    LOOKED = "looked"
    NO_METRIC = "no metric"
    TIMEOUT = "timeout"
    SIGNAL = "signal"
    PREEMPTED = "preempted"


@dataclass(frozen=True)
class StopOrder:
    """How firmly to stop, and why."""

    level: StopLevel
    cause: StopCause
    reason: str


BY_SIGNAL = {StopCause.SIGNAL, StopCause.PREEMPTED}


def is_cause(order: StopOrder, earlier: StopOrder | None) -> bool:
    """Whether an order says why the run ends: the first one that ends it does.

    After a look another run was to follow. A signal keeps it from that, so it is the cause.

    Args:
        order: Given now.
        earlier: What the run is ended for so far; ``None`` if it is not.
    """
    if earlier is None or earlier.cause is StopCause.TARGET:
        return True
    return earlier.cause is StopCause.LOOKED and order.cause in BY_SIGNAL


@dataclass(frozen=True)
class Bounds:
    """What a trial may take, whatever its policy says of it.

    Attributes:
        cost_bound_j: Cost past which it is hopeless; ``None`` for no bound.
        timeout_s: Seconds since launch; ``None`` for no limit.
        stop_at_target: Whether the script is told to stop at the target.
        needs_metric: The metric without which it is stopped after ``EPOCHS_WITHOUT_METRIC``
            epochs; ``None`` to let it go on.
    """

    cost_bound_j: float | None
    timeout_s: float | None
    stop_at_target: bool
    needs_metric: str | None = None


def build_bounds(spec: JobSpec, trial: Trial, cost_bound_j: float | None) -> Bounds:
    """Return what a trial may take: by its job file and, for its cost, by its policy."""
    objective, timeout_s = spec.objective, spec.timeout_s
    return Bounds(
        cost_bound_j,
        None if timeout_s is None else timeout_s - (trial.time_s or 0.0),
        stop_at_target=objective.on_target == "stop",
        needs_metric=trial.metric if objective.missing_metric == "stop" else None,
    )


@dataclass(frozen=True)
class Verdict:
    """Why a run does not go on: ``HOPELESS`` and ``LOOKED`` come from the policy."""

    cause: StopCause
    reason: str


def supervise(
    progress: Progress, bounds: Bounds, signals: Sequence[int], verdict: Verdict | None = None
) -> StopOrder | None:
    """Decide whether the run goes on (``None``) or how it stops.

    Args:
        progress: Now.
        bounds: What it may take.
        signals: Signals that zeusrun has received, in order.
        verdict: Of the policy; ``None`` to go on.
    """
    if signals:
        level = StopLevel.TERMINATE if len(signals) == 1 else StopLevel.KILL
        name = signal.Signals(signals[0]).name
        cause = StopCause.PREEMPTED if signals[0] in PREEMPTING else StopCause.SIGNAL
        return StopOrder(level, cause, f"{name} to zeusrun")
    if bounds.timeout_s is not None and progress.now_t - progress.launched_t > bounds.timeout_s:
        reason = f"timed out after {bounds.timeout_s:g} s"
        return StopOrder(StopLevel.TERMINATE, StopCause.TIMEOUT, reason)
    if progress.reached is not None:
        if bounds.stop_at_target:
            return StopOrder(StopLevel.TELL, StopCause.TARGET, "target reached")
        return None
    against = verdict or _without_metric(progress, bounds) or _past_bound(progress, bounds)
    if against is None:
        return None
    return StopOrder(StopLevel.TERMINATE, against.cause, against.reason)


def _without_metric(progress: Progress, bounds: Bounds) -> Verdict | None:
    metric, seen = bounds.needs_metric, progress.seen_metrics
    if metric is None or metric in seen or len(progress.other_epochs) < EPOCHS_WITHOUT_METRIC:
        return None
    names = ", ".join(sorted(seen)[:10]) or "nothing"
    return Verdict(
        StopCause.NO_METRIC,
        f"the first {EPOCHS_WITHOUT_METRIC} epochs reported no {metric!r}, but {names}; correct "
        "objective.metric in the job file, or set objective.missing_metric to continue",
    )


def _past_bound(progress: Progress, bounds: Bounds) -> Verdict | None:
    cost_j, bound_j = progress.cost_j, bounds.cost_bound_j
    if cost_j is None or bound_j is None or cost_j <= bound_j:
        return None
    return Verdict(StopCause.HOPELESS, f"its cost passed the bound of {energy_text(bound_j)}")
