"""What a run proves: how fast the batch size learns, how fast it is, and what a run of it costs.

Each of these has its own condition. What was paid is in the trial, and stays true.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.cost import cost_j
from zeusrun.trial import (
    BY_RANKS,
    CurvePoint,
    TrialStatus,
    counts_from_zero,
    epochs_of,
    is_baseline,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.problem import Problem
    from zeusrun.trial import Trial


CRASHED = frozenset({TrialStatus.OOM, TrialStatus.FAILED})
THEN = "+"  # between the first and last hash of a part that changed within a trial
_SHORT_S = 6.0  # of training, in which the load of other programs may not have been measured
_SWITCH = 0.05  # share of an epoch in which its loader may still get other workers
_EARLIER = "earlier"  # speed variant of runs with another number of loader workers than today
_SAME_S = 1e-3  # times of one moment differ in their last digits


class Doubt(Enum):
    """Why something of a finished run does not count, as it is told of one or several runs."""

    FORGOTTEN = "forgotten by 'history --forget'"
    OTHER_SIZE = "trained with another batch size"
    NO_OUTCOME = "ended without an outcome"
    NO_CRASH = "ended by a signal, or without the metric"
    NO_STEP = "was stopped before the first step"
    CONTINUED = "went on from a checkpoint of another run"
    NO_EPOCH = "met the target before the first epoch"
    CHANGED = "changed while preempted"
    RESTARTED = "began anew after an interruption"
    UNCLEAR = "began anew or went on after an interruption, which is unknown"
    SHARED = "shared its devices"
    SHORT = "ended too soon to show whether others used the CPU"
    INTERRUPTED = "had no epoch without an interruption"
    TUNED = "tried other numbers of loader workers in every epoch"
    RESIZED = "changed the number of ranks"  # no epoch had that of the trial, or a crash had not


class Proof(NamedTuple):
    """What of a finished run counts; ``None``: no doubt about it."""

    learning: Doubt | None  # about its epochs
    speed: Doubt | None  # about its seconds and joules per epoch

    @property
    def nothing(self) -> bool:
        """Whether nothing of the run counts, not even a crash."""
        return self.learning is not None and self.learning is self.speed


class Way(NamedTuple):
    """Epochs of a run, and what they took; ``None``: unknown."""

    epochs: int
    time_s: float | None
    energy_j: float | None


def prove(trial: Trial, *, learn_from_shared: bool = False) -> Proof:
    """Return what a finished run proves; only the hardware and the job may still differ."""
    continued = trial.continued and trial.status not in CRASHED
    doubt = _doubt_all(trial) or (Doubt.CONTINUED if continued else None)
    if doubt is not None:
        return Proof(doubt, doubt)
    if trial.status in CRASHED and _ranks_at(trial, math.inf) != trial.world_size:
        return Proof(Doubt.RESIZED, Doubt.RESIZED)  # a rank had another share of the batch
    learning = speed = None
    if changed_parts(trial):
        learning = Doubt.CHANGED
    elif trial.status is TrialStatus.REACHED and trial.epochs == 0:
        learning = Doubt.NO_EPOCH
    elif trial.variant == BY_RANKS and is_resized(trial):
        learning = Doubt.RESIZED  # so did its batch size, and not by a plan
    elif trial.interruptions and (trial.unclear or _began_anew(trial)):
        learning = Doubt.UNCLEAR if trial.unclear else Doubt.RESTARTED
    if trial.shared is True and not learn_from_shared:
        speed = Doubt.SHARED
    elif not learn_from_shared and _is_short(trial):
        speed = Doubt.SHORT
    elif _is_disturbed(trial) and not _intact(_in_samples(trial)).epochs:
        tried = Doubt.TUNED if tries_workers(trial) else Doubt.INTERRUPTED
        speed = Doubt.RESIZED if is_resized(trial) else tried
    return Proof(learning, speed)


def _is_short(trial: Trial) -> bool:
    """Whether a run on a CPU was cancelled before its load could be measured."""
    unknown = trial.shared is None and trial.gpu_model is None
    cancelled = trial.status in {TrialStatus.CANCELLED, TrialStatus.PREEMPTED}
    return unknown and cancelled and trial.time_s is not None and trial.time_s < _SHORT_S


def changed_parts(trial: Trial) -> list[str]:
    """Return the parts of the training that changed while it was preempted."""
    return [part for part, print_ in (trial.fingerprint or {}).items() if THEN in print_]


def _doubt_all(trial: Trial) -> Doubt | None:
    if trial.forgotten:
        return Doubt.FORGOTTEN
    if not trial.teaches:
        return Doubt.OTHER_SIZE
    if trial.status is TrialStatus.LOST:
        return Doubt.NO_OUTCOME
    if trial.status is TrialStatus.FAILED and trial.cause is None:
        return Doubt.NO_CRASH
    # It may have evaluated as epoch 0.
    if trial.status is TrialStatus.STOPPED and not trial.whole_steps:
        unknown = trial.time_s is None and not trial.epochs
        if all(point.epoch == 0 for point in trial.curve) if trial.curve else unknown:
            return Doubt.NO_STEP
    return None


def _began_anew(trial: Trial) -> bool:
    """Whether all reports before an interruption were made again.

    Where an epoch has several reports, one in the first epoch may follow those before.
    """
    first_s = next((point.time_s for point in trial.curve if not is_baseline(point)), 0.0)
    least = 2 if trial.by_samples else 1
    return any(each.epochs >= least and each.time_s < first_s for each in trial.interruptions)


def _in_samples(trial: Trial) -> Trial:
    """Return a run with samples for epochs in its curve, if it reports within epochs."""
    return replace(trial, curve=trial.by_samples) if trial.by_samples else trial


def whole_way(trial: Trial) -> Way | None:
    """Return a run up to its last epoch; ``None`` without one."""
    if epochs := epochs_of(trial.curve):
        last = trial.curve[-1]
        return Way(epochs, last.time_s, last.energy_j)
    if trial.curve or not trial.epochs:
        return None
    return Way(trial.epochs, trial.time_s, trial.energy_j)


def is_resized(trial: Trial) -> bool:
    """Whether a run had another number of ranks within the span that counts."""
    end_s = _end_s(trial)
    return any(
        each.world_size != trial.world_size and each.time_s < end_s for each in trial.world_sizes
    )


def _end_s(trial: Trial) -> float:
    return math.inf if trial.time_s is None else trial.time_s


def with_ranks_of(problem: Problem, trial: Trial) -> Trial:
    """Return a run as one with the job's number of ranks, if it had that for a while."""
    ranks, end_s = problem.hardware.world_size, _end_s(trial)
    had = any(each.world_size == ranks and each.time_s < end_s for each in trial.world_sizes)
    return replace(trial, world_size=ranks) if had and trial.variant != BY_RANKS else trial


def _is_disturbed(trial: Trial) -> bool:
    return bool(trial.interruptions) or is_resized(trial) or tries_workers(trial)


def tries_workers(trial: Trial) -> bool:
    """Whether a run had other numbers of loader workers than the fastest, in its span."""
    return not _has_best_workers(trial, -math.inf, _end_s(trial))


def _has_best_workers(trial: Trial, since_s: float, until_s: float) -> bool:
    """Whether a run had its best number of loader workers all the time between two moments.

    If one has died and nothing was measured, no number was that which the job would have.
    """
    best = trial.best_workers
    if best is None:
        return not any(each.died for each in trial.workers)
    if math.isfinite(since_s):  # workers change a moment after an epoch was reported
        since_s += _SWITCH * (until_s - since_s)
    begun = [each for each in trial.workers if each.time_s <= since_s][-1:]
    had = [*begun, *(each for each in trial.workers if since_s < each.time_s < until_s)]
    return {each[1:3] for each in had} <= {best[1:3]}


def _ranks_at(trial: Trial, time_s: float) -> int:
    """Return how many ranks trained at a moment."""
    changes = (each.world_size for each in reversed(trial.world_sizes) if each.time_s <= time_s)
    first = trial.world_sizes[0].world_size if trial.world_sizes else trial.world_size
    return next(changes, first)


def undisturbed(trial: Trial, way: Way | None) -> Way | None:
    """Return what epochs would have taken without interruptions, and with the ranks of the trial.

    The speed is that between reports with these ranks, and without an interruption in between.
    """
    if way is None or not _is_disturbed(trial):
        return way
    epochs, time_s, energy_j = _intact(trial)
    if not epochs or time_s is None or (trial.unclear and trial.interruptions):
        return Way(way.epochs, None, None)
    share = way.epochs / epochs
    return Way(way.epochs, time_s * share, None if energy_j is None else energy_j * share)


def as_undisturbed(trial: Trial) -> Trial:
    """Return a run with what it would have taken without interruptions, as ``undisturbed``.

    Runs are compared by time, energy and cost of it. A crash keeps its own: the training itself
    made torchrun restart it.
    """
    if not _is_disturbed(trial) or trial.status in CRASHED:
        return trial
    finest, length = _in_samples(trial), trial.epochs
    if trial.by_samples:
        length = max((point.epoch for point in _counting(finest)), default=0)
    way = undisturbed(finest, Way(length, None, None) if length else None)
    way = way or Way(0, None, None)
    knob = min(max(0.0, trial.eta_knob), 1.0)  # any other comes from a damaged record
    spent_j = cost_j(way.energy_j, trial.max_power_w, way.time_s, knob)
    return replace(trial, time_s=way.time_s, energy_j=way.energy_j, cost_j=spent_j)


def _counting(trial: Trial) -> list[CurvePoint]:
    """Return the reports up to the target: what followed may have been interrupted, too."""
    end_s = math.inf
    if trial.status is TrialStatus.REACHED and trial.time_s is not None:
        end_s = trial.time_s + _SAME_S
    return [point for point in trial.curve if not is_baseline(point) and point.time_s <= end_s]


def _intact(trial: Trial) -> Way:
    """Add up the stretches between reports without an interruption, with the trial's ranks."""
    resizes = [each for each in trial.world_sizes if each.world_size != trial.world_size]
    points = _counting(trial)
    from_zero = counts_from_zero(tuple(point.epoch for point in points[:3]))
    moments = [*(each.time_s for each in trial.interruptions), *(each.time_s for each in resizes)]
    stretches = [
        (since, until)
        for since, until in pairwise([CurvePoint(-from_zero, 0.0, 0.0, None), *points])
        if until.epoch > since.epoch
        and _ranks_at(trial, since.time_s) == trial.world_size
        and _has_best_workers(trial, since.time_s, until.time_s)
        and not any(since.time_s <= time_s < until.time_s for time_s in moments)
    ]
    energies = [
        until.energy_j - since.energy_j
        for since, until in stretches
        if until.energy_j is not None and since.energy_j is not None
    ]
    return Way(
        sum(until.epoch - since.epoch for since, until in stretches),
        sum(until.time_s - since.time_s for since, until in stretches),
        sum(energies) if len(energies) == len(stretches) else None,
    )


def same_hardware(problem: Problem, trial: Trial) -> bool:
    """Whether a trial ran on devices like the job's; for CPUs, also of the same maximum power."""
    then_w, now_w = trial.max_power_w, problem.max_power_w
    if problem.hardware.gpu_count == 0 and None not in (then_w, now_w) and then_w != now_w:
        return False
    return trial.hardware == problem.hardware


def same_split(problem: Problem, trial: Trial) -> bool:
    """Whether as many samples were on a device at once as today: memory and speed depend on it."""
    return trial.micro_batch_size == problem.micro_batch_sizes.get(trial.global_batch_size)


def same_speed(problem: Problem, trial: Trial) -> bool:
    """Whether the loader got its workers as it would today."""
    return trial.speed_variant == problem.speed_variant


def at_best_workers(trials: Sequence[Trial]) -> list[Trial]:
    """Return trials, oldest first; the speed of some is not that of today (``same_speed``).

    Those ended with another number of loader workers than the newest search for their batch size.
    """

    def arm(trial: Trial) -> tuple[object, ...]:
        return trial.global_batch_size, trial.hardware, trial.host, trial.speed_variant

    known = [(trial, best) for trial in trials if (best := trial.best_workers) is not None]
    known.sort(key=lambda each: (not each[0].shared, each[1].settled is not None))
    today = {arm(trial): best[1:3] for trial, best in known}  # of the last of each
    slow = {id(trial) for trial, best in known if best[1:3] != today[arm(trial)]}
    return [replace(each, speed_variant=_EARLIER) if id(each) in slow else each for each in trials]


def same_energy(problem: Problem, trial: Trial) -> bool:
    """Whether joules then and now are both measured, or both estimated."""
    source = trial.energy_source
    return problem.eta_knob == 0 or source is None or source.measured == problem.energy_measured


def same_learning(problem: Problem, trial: Trial) -> bool:
    """Whether the batch size would take as many epochs today as it did in the trial."""
    if (trial.metric, trial.mode) != (problem.metric, problem.mode):
        return False
    then = trial.learning_rate
    now = problem.learning_rates.get(trial.global_batch_size, then)
    if then is None or now is None:
        return then == now
    return then == now or math.isclose(then, now, rel_tol=1e-9)
