"""What policies see of a trial, and what follows from one or several of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from zeusrun.trial import PowerPoint, Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.problem import Problem

Pace: TypeAlias = tuple[tuple[int, float], ...]
"""``(epoch, value)`` wherever the best value of a learning curve improved, in order."""

FAILED = frozenset({TrialStatus.MISSED, TrialStatus.STOPPED})
OUTDONE = FAILED | {TrialStatus.OOM}
"""Failures of a batch size: another one may still reach the target."""

STALE = 0.05
"""A profile is stale once speed or power under one of its limits has changed by this share."""


class Run(NamedTuple):
    """A trial as it reads under today's problem; see ``reinterpret.read_trial``.

    Attributes:
        arm: Its global batch size, which may be no candidate any more.
        status: ``CANCELLED`` stands for every run that ended too early to be a success or a
            failure; its speed and learning curve count. ``PREEMPTED`` and ``LOST`` do not occur.
        epochs: To the target if it was reached, else completed; ``None`` if nothing is known.
        cost_j: Joules to the target; ``None`` unless it was reached on hardware like today's.
        epoch_cost_j: Joules per epoch on today's hardware, at ``power_limit_w``.
        power_limit_w: The limit that the power objective chooses among those measured.
        power_w: Watts drawn at the highest limit measured.
        local: Whether time and energy were measured as they would be today.
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
    """A running trial at the end of an epoch: epochs and joules spent, best metric so far."""

    epochs: int
    cost_j: float | None
    best_value: float | None


def finite_exp(log: float) -> float:
    """Return e to a power, at most 1e304: a damaged history may hold costs of any size."""
    return math.exp(min(log, 700.0))


def better(mode: str, value: float, other: float) -> bool:
    """Whether a metric is strictly better than another one."""
    return value < other if mode == "min" else value > other


def step_cost_j(point: PowerPoint, problem: Problem, eta_knob: float | None = None) -> float | None:
    """Return the joules of cost per step under a power limit; ``None`` if unknown.

    ``(eta_knob * power + (1 - eta_knob) * max_power) / steps_per_s``: the cost metric of You et
    al. (NSDI 2023) per step. ``eta_knob`` is the problem's unless another one is given.
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
    """Whether speed or power under a limit has changed so much that old points are wrong."""
    pairs = (old.steps_per_s, new.steps_per_s), (old.power_w, new.power_w)
    return any(abs(now - then) > STALE * abs(then) for then, now in pairs)


def merged_profile(runs: Sequence[Run]) -> tuple[PowerPoint, ...]:
    """Return the newest point of every limit over an arm's runs (oldest first), by limit.

    A run that contradicts a known point starts a new profile; see ``is_stale``.
    """
    points: dict[float, PowerPoint] = {}
    for run in runs:
        own = {p.power_limit_w: p for p in run.profile if run.local and p.power_limit_w is not None}
        if any(is_stale(points[limit], own[limit]) for limit in own.keys() & points.keys()):
            points = {}
        points |= own
    return tuple(points[limit] for limit in sorted(points))
