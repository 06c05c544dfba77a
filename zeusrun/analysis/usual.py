"""What runs like a given one have usually taken: start-up, and epochs to the target."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zeusrun.trial import Trial

_NEWEST = 20


@dataclass(frozen=True)
class Usual:
    """Medians over past runs of the job; ``None``: there is no such run."""

    startup_s: float | None = None  # on the same devices
    epochs: float | None = None  # to the target, with the same batch size


UNKNOWN = Usual()


def find_usual(trial: Trial, earlier: Sequence[Trial]) -> Usual:
    """Return what a trial will probably take; ``earlier`` are of its job, oldest first."""
    devices = _devices(trial)
    startups = (each.startup_s for each in earlier if _devices(each) == devices)
    learning = _learning(trial)
    reached = (each for each in earlier if each.status is TrialStatus.REACHED and each.teaches)
    epochs = (each.epochs for each in reached if _learning(each) == learning)
    return Usual(_median(startups), _median(epochs))


def _devices(trial: Trial) -> tuple[object, ...]:
    return trial.world_size, trial.gpu_model, trial.gpu_count


def _learning(trial: Trial) -> tuple[object, ...]:
    objective = (trial.metric, trial.mode, trial.target)
    return trial.global_batch_size, trial.learning_rate, trial.variant, *objective


def _median(values: Iterable[float | None]) -> float | None:
    newest = [value for value in values if value is not None][-_NEWEST:]
    return statistics.median(newest) if newest else None
