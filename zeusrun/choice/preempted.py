"""Which preempted trial goes on, and why another one does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.choice.inputs import Chooser, Machine
    from zeusrun.trial import Trial

CANCELLED_LATER = "cancelled by 'zeusrun cancel' after it was preempted"


def list_preempted(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that later submits will continue, oldest first; no forgotten ones."""
    found: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: (-trial.recurrence, -trial.attempt)):
        if trial.status is TrialStatus.PREEMPTED:
            found += [] if trial.forgotten else [trial]
        elif trial.status is not TrialStatus.DISPATCHED and trial.reason != CANCELLED_LATER:
            break
    return found[::-1]


def find_preempted(trials: Sequence[Trial]) -> Trial | None:
    """Return the oldest trial that the next submit will continue; ``None`` if there is none."""
    return next(iter(list_preempted(trials)), None)


def why_not_continued(
    chooser: Chooser, machine: Machine, trial: Trial, *, has_files: bool
) -> str | None:
    """Return why a preempted trial cannot be continued as it began; ``None`` if it can."""
    spec, arm = chooser.spec, trial.global_batch_size
    names = ("metric", "target", "mode", "eta_knob", "max_epochs")
    then, now = ([getattr(each, name) for name in names] for each in (trial, spec.objective))
    ran_on, here = ((each.world_size, each.gpu_model, each.gpu_count) for each in (trial, machine))
    refusals = {
        "its run directory is gone": not has_files,
        "a chosen batch size starts a new run": chooser.forced is not None,
        f"{arm} is no longer a candidate": arm not in spec.batch_size.candidates,
        "the objective has changed": then != now,
        "the batch size adapts in another way": trial.variant != spec.variant,
        "the learning rate has changed": trial.learning_rate != spec.learning_rate_for(arm),
        "it ran on other devices": ran_on != here,
    }
    return next((reason for reason, holds in refusals.items() if holds), None)
