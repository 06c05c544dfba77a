"""How long a running trial will still take, by itself and by past runs."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.trial import counts_from_zero

if TYPE_CHECKING:
    from zeusrun.analysis.usual import Usual
    from zeusrun.metrics.progress import Progress
    from zeusrun.trial import Trial


class Remaining(NamedTuple):
    """What is left of a trial: seconds, and epochs of how many; ``at_most``: by no past run."""

    seconds: float
    goal: float
    at_most: bool


def estimate_remaining(trial: Trial, progress: Progress, usual: Usual) -> Remaining | None:
    """Return what is left of a trial; ``None`` while nothing shows it."""
    epoch_s = _epoch_s(progress)
    unknown = progress.by_reports or bool(trial.by_samples or progress.by_samples)
    if epoch_s is None or progress.time_s is None or unknown:
        return None
    goal, at_most = float(trial.max_epochs), True
    if usual.epochs is not None and usual.epochs > progress.epochs:
        goal, at_most = usual.epochs, False
    left_s = epoch_s * (goal - progress.epochs) - (progress.time_s - progress.curve[-1].time_s)
    return Remaining(max(0.0, left_s), goal, at_most)


def _epoch_s(progress: Progress) -> float | None:
    """Return the seconds of an epoch in this run; ``None`` while nothing shows them."""
    if not progress.curve:
        return None
    first, last = progress.curve[0], progress.curve[-1]
    kept = progress.earlier[: bisect_left(progress.earlier, first.epoch)]  # before a preemption
    done = progress.epochs - (kept[-1] + counts_from_zero(kept[:3]) if kept else 0)
    if done <= 0:
        return None
    if progress.steps is None:  # then the time before the first report includes start-up
        epochs = last.epoch - first.epoch
        return (last.time_s - first.time_s) / epochs if epochs > 0 else None
    return last.time_s / done if progress.step_times_s else None  # one step shows no duration
