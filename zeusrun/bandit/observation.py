"""What one trial says today: all that a policy ever sees of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from zeusrun.trial import PowerPoint, Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.problem import Problem

Pace: TypeAlias = tuple[tuple[int, float], ...]
"""``(epoch, value)`` wherever the best value of a learning curve rose, in order."""

STALE = 0.05
"""Share by which speed or power under a limit may leave the profile before it holds no more."""


class Run(NamedTuple):
    """A trial as it reads under the problem of today; see ``reading.read_trial``.

    Attributes:
        arm: Its global batch size; not always a candidate any more.
        recurrence: Number of its recurrence.
        status: ``DISPATCHED`` (in flight), ``REACHED``, ``MISSED``, ``STOPPED``, ``OOM``,
            ``FAILED`` (its script crashed) or
            ``CANCELLED``: cut short, so that it tells of speed and pace, but neither of success
            nor of failure.
        stage: Why it was run.
        epochs: To the target where it was reached, else completed; ``None`` if it says nothing
            of learning.
        cost_j: Joules to the target; ``None`` unless it was reached on hardware like today's.
        epoch_cost_j: Joules an epoch costs on today's hardware, at the limit that the power
            objective chooses among those measured.
        power_limit_w: The limit that ``epoch_cost_j`` belongs to.
        power_w: Watts drawn at the highest limit seen; ``None`` if unknown.
        local: Whether time and energy were measured as they would be today.
        pace: Its learning curve.
        profile: Speed and power by limit.
    """

    arm: int
    recurrence: int
    status: TrialStatus
    stage: Stage = Stage.EXPLORE
    epochs: int | None = None
    cost_j: float | None = None
    epoch_cost_j: float | None = None
    power_limit_w: float | None = None
    power_w: float | None = None
    local: bool = True
    pace: Pace = ()
    profile: tuple[PowerPoint, ...] = ()


class Running(NamedTuple):
    """The trial that is being reviewed, at the end of an epoch.

    Attributes:
        epochs: Epochs completed.
        cost_j: Joules spent; ``None`` if unknown.
        best_value: Best finite value of the metric so far; ``None`` before there is one.
    """

    epochs: int
    cost_j: float | None
    best_value: float | None


def better(mode: str, value: float, other: float) -> bool:
    """Whether a metric is strictly better than another one."""
    return value < other if mode == "min" else value > other


def step_cost_j(point: PowerPoint, problem: Problem, eta_knob: float | None = None) -> float | None:
    """Return the joules that a step costs under a limit; ``None`` where that is unknown.

    ``(eta_knob * power + (1 - eta_knob) * max_power) / steps_per_s``; the cost metric of You et
    al. (NSDI 2023) per step.

    Args:
        point: Speed and power.
        problem: Whose cost it is.
        eta_knob: Weight of energy; ``None`` for the problem's own.
    """
    if point.steps_per_s <= 0:
        return None
    eta_knob = problem.eta_knob if eta_knob is None else eta_knob
    watts = eta_knob * point.power_w
    if eta_knob < 1:
        if problem.max_power_w is None:
            return None
        watts += (1 - eta_knob) * problem.max_power_w
    return watts / point.steps_per_s


def is_stale(old: PowerPoint, new: PowerPoint) -> bool:
    """Whether training under the same limit has changed, so that older points say nothing now.

    Args:
        old: What was measured.
        new: What is measured now, at the same limit.
    """
    return _differ(old.steps_per_s, new.steps_per_s) or _differ(old.power_w, new.power_w)


def _differ(old: float, new: float) -> bool:
    return abs(new - old) > STALE * abs(old)


def merged_profile(runs: Sequence[Run]) -> tuple[PowerPoint, ...]:
    """Return the newest point of every limit over an arm's runs, ascending.

    A profile goes stale: a run that is at odds with what was known of a limit starts a new one.

    Args:
        runs: Oldest first.
    """
    points: dict[float, PowerPoint] = {}
    for run in runs:
        if not run.local:
            continue
        own = {
            point.power_limit_w: point for point in run.profile if point.power_limit_w is not None
        }
        if any(is_stale(points[limit], own[limit]) for limit in own.keys() & points.keys()):
            points = {}
        points |= own
    return tuple(points[limit] for limit in sorted(points))
