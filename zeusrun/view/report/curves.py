"""The learning curves that a report shows. Pure."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.trial import is_baseline
from zeusrun.view.report.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from zeusrun.trial import Trial
    from zeusrun.view.report.sizes import Size

_CURVES = 8  # of each batch size, the newest
_POINTS = 150  # of a curve


@dataclass(frozen=True)
class CurveFacts:
    """A learning curve; ``taken`` is energy in joules or, if unknown, time in seconds."""

    trial: str
    size: int
    status: str
    best: float | None
    epochs: tuple[float, ...]
    taken: tuple[float, ...]
    values: tuple[float, ...]


def build_curves(
    trials: Sequence[Trial], index: Mapping[Size, int], *, by_energy: bool
) -> Iterator[CurveFacts]:
    """Yield the newest curves of each batch size, oldest first."""
    drawn: Counter[Size] = Counter()
    newest = []
    for trial in reversed(trials):
        if len(trial.curve) > 1 and trial.metric == trials[-1].metric:
            drawn[size_of(trial)] += 1
            if drawn[size_of(trial)] <= _CURVES:
                newest.append(trial)
    for trial in reversed(newest):
        step = math.ceil(len(trial.curve) / _POINTS)
        first = 0 if is_baseline(trial.curve[0]) or trial.curve[0].epoch else 1
        points = [
            (float(point.epoch + first), taken, point.value)
            for point in (*trial.curve[:-1:step], trial.curve[-1])
            if point.value is not None
            and (taken := point.energy_j if by_energy else point.time_s) is not None
        ]
        if len(points) > 1:
            epochs, taken_by, values = zip(*points, strict=True)
            yield CurveFacts(
                trial.trial,
                index[size_of(trial)],
                trial.status.value,
                trial.best_metric,
                epochs,
                taken_by,
                values,
            )
