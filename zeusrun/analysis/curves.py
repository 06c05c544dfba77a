"""Learning curves for figures, and whether they are drawn against epochs or samples. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from zeusrun.analysis.amounts import size_label
from zeusrun.analysis.estimates import MOST, group_by
from zeusrun.bandit.reinterpret import by_epochs_done, find_unit, samples_per_epoch
from zeusrun.trial import epochs_of, spread_samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from zeusrun.trial import CurvePoint, Trial
    from zeusrun.trial.values import NoisePoint


CurveUnit: TypeAlias = Literal["epochs", "samples"]


def curve_unit(trials: Sequence[Trial]) -> CurveUnit:
    """Return what the curves of a job are drawn against: what its runs are compared by.

    If no run may be compared, it is samples if all runs have a curve by samples.
    """
    drawn = [trial for trial in trials if trial.curve and trial.metric == trials[-1].metric]
    if not drawn:
        return "epochs"
    compared = find_unit(drawn[-1].metric, drawn[-1].mode, drawn) is not None
    return "samples" if compared or all(trial.by_samples for trial in drawn) else "epochs"


def curve_in(trial: Trial, unit: CurveUnit) -> Sequence[CurvePoint]:
    """Return the curve of a run by epochs done, or by samples; empty if these are unknown."""
    if unit == "samples":
        return trial.by_samples or spread_samples(trial.curve, _samples(trial))
    return by_epochs_done(trial.curve)


def amount_in(trial: Trial, unit: CurveUnit) -> int | None:
    """Return the epochs or samples of a run up to its target, else to its end."""
    if unit == "epochs":
        return trial.epochs
    if trial.samples is not None or trial.by_samples:
        return trial.samples
    samples, whole = _samples(trial), epochs_of(trial.curve)
    return round(samples * (trial.epochs or whole) / whole) if samples and whole else None


def _samples(trial: Trial) -> int:
    """Return the samples of a run that reports once an epoch; 0 if unknown."""
    whole = samples_per_epoch(trial) or 0.0
    return trial.whole_samples or round(whole * epochs_of(trial.curve))


def left_out_text(trials: Iterable[Trial], unit: CurveUnit) -> str:
    """Return which of some runs with a curve cannot be drawn against a unit; "" if all can."""
    count = sum(bool(trial.curve) and not curve_in(trial, unit) for trial in trials)
    if not count:
        return ""
    runs, their = ("1 run", "its") if count == 1 else (f"{count} runs", "their")
    return f"{runs} left out: {their} number of samples is unknown"


_POINTS = 150  # of a curve


@dataclass(frozen=True)
class CurveFacts:
    """A learning curve; ``taken`` is energy in joules or, if unknown, time in seconds.

    ``epochs`` are samples if the job is compared by them.
    """

    trial: str
    size: str  # label of its batch size
    status: str
    best: float | None
    epochs: tuple[float, ...]
    taken: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class NoiseFacts:
    """How the gradient noise scale of a run went, ``at`` epochs or samples."""

    trial: str
    size: str  # label of its batch size
    at: tuple[float, ...]
    points: tuple[NoisePoint, ...]


def newest_curves(trials: Sequence[Trial], most: int) -> list[Trial]:
    """Return the newest runs with a curve, oldest first: at most ``most`` of each batch size.

    Those of another metric than that of the newest run are left out.
    """
    drawn = [trial for trial in trials if trial.curve and trial.metric == trials[-1].metric]
    chosen = {
        trial.trial for same in group_by(drawn, size_label).values() for trial in same[-most:]
    }
    return [trial for trial in drawn if trial.trial in chosen]


def build_curves(
    trials: Sequence[Trial], unit: CurveUnit, *, by_energy: bool
) -> Iterator[CurveFacts]:
    """Yield the curves of runs that have at least two points; long ones are thinned."""
    for trial in trials:
        curve = curve_in(trial, unit)
        step = math.ceil(len(curve) / _POINTS) or 1
        points = [
            (float(point.epoch), taken, point.value)
            for point in (*curve[:-1:step], *curve[-1:])
            if point.value is not None
            and abs(point.value) < MOST
            and (taken := point.energy_j if by_energy else point.time_s) is not None
        ]
        if len(points) > 1:
            epochs, taken_by, values = zip(*points, strict=True)
            yield CurveFacts(
                trial.trial,
                size_label(trial),
                trial.status.value,
                trial.best_metric,
                epochs,
                taken_by,
                values,
            )


def build_noise(trials: Sequence[Trial], unit: CurveUnit) -> Iterator[NoiseFacts]:
    """Yield the noise scale of the newest run of each batch size that has measured it."""
    newest = {size_label(trial): trial for trial in trials if trial.noise_curve}
    for trial in sorted(newest.values(), key=lambda each: each.global_batch_size):
        at = [point.samples if unit == "samples" else point.epoch for point in trial.noise_curve]
        points = [
            (x, point)
            for x, point in zip(at, trial.noise_curve, strict=True)
            if x is not None and 0 < point.known < MOST and (point.high or 0) < MOST
        ]
        if len(points) > 1:
            xs, known = zip(*points, strict=True)
            yield NoiseFacts(trial.trial, size_label(trial), xs, known)
