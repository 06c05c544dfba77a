"""Sums and medians of what may be unknown, and runs by recurrence."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from zeusrun.trial import Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from zeusrun.trial import CurvePoint, Trial

MOST = 1e30
"""A larger amount has diverged, or comes from a damaged record."""

_SAME_S = 1e-3  # times of one moment differ in their last digits


def sum_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of what is known; ``None`` if nothing is."""
    known = [value for value in values if value is not None]
    return _finite(sum(known)) if known else None


def median_known(values: Iterable[float | None]) -> float | None:
    """Return the median of what is known; ``None`` if nothing is."""
    known = [value for value in values if value is not None]
    return _finite(statistics.median(known)) if known else None


def sum_attempts(own: Iterable[Trial], value: Callable[[Trial], float | None]) -> float | None:
    """Return the sum over attempts; ``None`` if that of one that has trained is unknown."""
    found = [
        amount for trial in own if (amount := value(trial)) is not None or not never_trained(trial)
    ]
    return None if None in found else sum_known(found)


def never_trained(trial: Trial) -> bool:
    """Whether a run ended before its first optimizer step."""
    return trial.time_s is None and not trial.steps


def last_after_target(trial: Trial) -> CurvePoint | None:
    """Return the last report of a run that trained on after its target, else ``None``."""
    if trial.status is not TrialStatus.REACHED or trial.time_s is None or not trial.curve:
        return None
    last = trial.curve[-1]
    return last if last.time_s > trial.time_s + _SAME_S else None


def by_recurrence(trials: Iterable[Trial]) -> dict[int, list[Trial]]:
    """Return the attempts of each recurrence, in the order of their first ones."""
    found: dict[int, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.recurrence, []).append(trial)
    return found


def find_ended(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Return the attempts of each recurrence that has ended."""
    return [own for own in by_recurrence(trials).values() if all(each.status.final for each in own)]


def has_explored(own: Sequence[Trial]) -> bool:
    """Whether zeusrun chose another batch size than the default in a recurrence."""
    return any(is_other(trial) for trial in own) and not is_forced(own)


def is_forced(own: Sequence[Trial]) -> bool:
    """Whether the user chose a batch size of a recurrence."""
    return any(trial.stage is Stage.FORCED for trial in own)


def is_other(trial: Trial) -> bool:
    """Whether a trial had another batch size than the default."""
    return trial.default_batch_size not in {None, trial.global_batch_size}


def _finite(amount: float) -> float | None:
    """Return an amount; ``None`` if it comes from damaged records."""
    return amount if math.isfinite(amount) else None
