"""Learning curves for figures, against epochs or samples. Pure."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.analysis.amounts import MOST
from zeusrun.analysis.curve_unit import curve_in
from zeusrun.analysis.sizes import size_label

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zeusrun.analysis.curve_unit import CurveUnit
    from zeusrun.noise_curve import NoisePoint
    from zeusrun.trial import Trial

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
    counts: Counter[str] = Counter()
    newest = []
    for trial in reversed(trials):
        if trial.curve and trial.metric == trials[-1].metric:
            counts[size_label(trial)] += 1
            if counts[size_label(trial)] <= most:
                newest.append(trial)
    return newest[::-1]


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
