"""Values that meet the target and cannot be the metric: in another unit, or a part of a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zeusrun.target import TIMES, is_share, meets_target
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.trial import Trial


class Known(NamedTuple):
    """The lowest and the highest of the best values of a job's earlier runs."""

    low: float
    high: float


def find_known(trial: Trial, earlier: Sequence[Trial]) -> Known | None:
    """Return the values of earlier runs with the same objective; ``None`` if there are none.

    A lost run does not count: no launcher has checked the values that it reported.
    """
    objective = (trial.metric, trial.mode, trial.target)
    judged = (each for each in earlier if each.status is not TrialStatus.LOST)
    alike = (each for each in judged if (each.metric, each.mode, each.target) == objective)
    bests = [t.best_metric for t in alike if t.best_metric is not None and not t.forgotten]
    return Known(min(bests), max(bests)) if bests else None


def find_doubt(value: float, trial: Trial, known: Known | None, best: float | None) -> str | None:
    """Return why a value that meets the target cannot be the metric; ``None`` if it can be.

    ``best`` is the best value of this run so far. An accuracy in percent meets every target that is
    a share; a number that was cut, such as the 0 of ``0,91``, meets one of ``mode: min``.
    """
    target, own = trial.target, () if best is None else (best,)
    if not meets_target(value, target, trial.mode):
        return None
    in_share = trial.mode == "max" and 0 < target <= 1
    why, percent = "", in_share and value >= 2
    named = in_share and is_share(trial.metric) and not meets_target(1.0, value, "max")
    if named:
        why = "its name says that it is a share, which is at most 1"
    elif known is not None and trial.mode == "max":
        most = max((known.high, *own))
        if (percent and known.low >= 0 and most <= 1) or 0 < TIMES * max(most, target) <= value:
            why = f"earlier runs had at most {most:.4g}"
    elif known is not None:
        least = min((known.low, *own))
        if 0 <= TIMES * value <= min(least, target) and least > 0:
            why = f"earlier runs had at least {least:.4g}"
    if not why:
        return None
    unit = f" If it is in percent, write  objective: {{target: {100 * target:g}}}."
    right = "; if they are right, change objective.target: only runs with the same one are compared"
    return (
        f"{trial.metric} {value:.4g} meets the target {target:g}, but does not count: {why}."
        f"{unit if percent else ''} Check that zeusrun reads whole numbers (docs/metrics.md)"
        f"{'' if named else right}"
    )
