"""How much a training has done up to its target, and in all: it may go on after it. Pure."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

from zeusrun.trial import is_baseline
from zeusrun.trial.values import WorkersChange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.metrics.progress import Progress
    from zeusrun.trial import CurvePoint, Trial


def count_spans(progress: Progress) -> dict[str, Any]:
    """Return the fields of an ``Outcome`` that say so, without energy; ``None`` if unknown."""
    reached, active_t, begun_t = progress.reached, progress.active_t, progress.training_t
    known, time_s = bool(progress.curve) and not progress.unclear, progress.time_s
    whole: dict[str, Any] = {"steps": progress.steps, "samples": progress.samples}
    whole["epochs"] = progress.epochs if known else None
    span = whole.copy()
    if reached is not None and active_t is not None and begun_t is not None:
        time_s = active_t - begun_t
        span["epochs"] = reached.epoch if known else None
        later = progress.stepping_s is None or progress.stepping_s[1] > begun_t + reached.time_s
        if later and progress.steps is not None:
            span["steps"] = progress.at_target[0]
        span["samples"] = progress.at_target[1]
    data = progress.observed[min(progress.observed)].data if progress.observed else None
    for each in (span, whole):
        each["progress"] = each["samples"] / data if each["samples"] is not None and data else None
    whole["time_s"] = time_s
    return {**span, **{f"whole_{name}": value for name, value in whole.items()}}


def list_workers(progress: Progress) -> tuple[WorkersChange, ...]:
    """Return the numbers of workers of the loader, where the job file changes them."""
    begun_t = progress.training_t
    if begun_t is None:
        return ()
    return tuple(
        WorkersChange(max(0.0, t - begun_t), *had)
        for t, *had, _problem in map(astuple, progress.loader_workers)
    )


def take_energy(
    progress: Progress, before: Progress, energy_j: float | None, power_w: float | None
) -> Progress:
    """Return the progress with the energy so far, which only decreases if training began later.

    The last joules are extrapolated: what is measured then may be less.
    """
    is_same = before.steps is not None and before.training_t == progress.training_t
    if energy_j is not None and before.energy_j is not None and is_same:
        energy_j = max(energy_j, before.energy_j)
    return replace(progress, energy_j=energy_j, power_w=power_w)


def find_first_epoch(trial: Trial, earlier: Sequence[Trial]) -> int | None:
    """Return the first epoch that all earlier runs of the same training have reported."""
    curves = (each.curve for each in earlier if each.fingerprint == trial.fingerprint)
    firsts = {point.epoch for curve in curves for point in _reports(curve)[:1]}
    return firsts.pop() if len(firsts) == 1 else None


def is_continued(progress: Progress, trial: Trial) -> bool:
    """Whether a script has gone on from a checkpoint of another run, such as that of last night.

    Then its first report is of a later epoch than it has trained, by the passes over the data, and
    has come as soon as others do. A report may be rounded up to the next epoch. A training that
    begins at the same epoch each time begins anew.
    """
    points = _reports(progress.curve)
    passes: float | None = count_spans(progress)["whole_progress"]
    again = progress.ranks.generation or trial.preemptions or progress.by_samples
    if again or not points or passes is None or points[0].epoch in {0, 1, progress.begins_at}:
        return False
    first, last = points[0], points[-1]
    if last.epoch - passes < 1:
        return False
    if len(points) == 1:  # then only a single whole pass is no accident
        return abs(passes - 1) < _ONE_PASS
    gap = points[1].epoch - first.epoch
    nearer = abs(passes - (last.epoch - first.epoch + gap)) < abs(passes - last.epoch)
    epoch_s = (last.time_s - first.time_s) / (last.epoch - first.epoch or 1)
    return nearer and first.time_s < _SOON * first.epoch * epoch_s


def _reports(curve: Sequence[CurvePoint]) -> Sequence[CurvePoint]:
    return curve[1:] if curve and is_baseline(curve[0]) else curve


_ONE_PASS = 0.1  # of the data, which a sampler pads, or of which it drops the last batch
_SOON = 0.75
