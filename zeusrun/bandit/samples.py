"""The samples of a training, and learning curves by epochs, by samples or by units of samples."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.bandit.proof import prove
from zeusrun.trial import TrialStatus, count_missing, epochs_of, scale_curve

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zeusrun.bandit.problem import Problem
    from zeusrun.trial import CurvePoint, Trial

# Other trials end within an epoch, so their steps do not show its length.
_WHOLE = frozenset({TrialStatus.REACHED, TrialStatus.MISSED})
_UNITS = 20  # so that rounding to whole units does no harm


def samples_per_epoch(trial: Trial) -> float | None:
    """Return the samples of an epoch by a whole trial; ``None`` if it does not show them."""
    epochs = epochs_of(trial.curve)
    # Its steps had several batch sizes, or include those that an interruption lost.
    if trial.variant is not None or trial.preemptions or trial.interruptions:
        return None
    if not trial.teaches or trial.status not in _WHOLE or not trial.steps or not epochs:
        return None
    return trial.steps * trial.global_batch_size / epochs


def find_unit(metric: str, mode: str, trials: Iterable[Trial]) -> int | None:
    """Return samples that count as an epoch: a part of the shortest way to a first report.

    ``None`` if no training that counts reports the metric within epochs.
    """
    firsts = [
        next((point.epoch for point in trial.by_samples if point.epoch), 0)
        for trial in trials
        if trial.by_samples
        and (trial.metric, trial.mode) == (metric, mode)
        and prove(trial).learning is None
    ]
    return max(1, min(filter(None, firsts)) // _UNITS) if any(firsts) else None


def in_units(problem: Problem, trial: Trial) -> Trial:
    """Return a trial with ``problem.unit`` samples for an epoch; without epochs if it cannot be."""
    if problem.unit is None or not (trial.curve or trial.epochs):
        return trial
    if trial.by_samples:
        curve = scale_curve(trial.by_samples, 0, 1 / problem.unit, least=1)
    else:
        scale = (samples_per_epoch(trial) or 0.0) / problem.unit
        curve = (
            scale_curve(trial.curve, count_missing(trial.curve), scale, least=1) if scale else ()
        )
    return replace(trial, curve=curve, epochs=None)


def by_epochs_done(curve: Sequence[CurvePoint]) -> Sequence[CurvePoint]:
    """Return a curve by the epochs done, also of a loop that counts from 0."""
    more = count_missing(curve)
    return scale_curve(curve, more, 1) if more else curve
