"""Reads stored trials under today's problem: learning curves by epochs, or by units of samples."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.bandit.eras import compare_training, find_differences, last_hash
from zeusrun.bandit.power import chosen_point
from zeusrun.bandit.problem import FAILED, Observation, SpeedElsewhere, step_cost_j
from zeusrun.bandit.proof import (
    CRASHED,
    Doubt,
    Way,
    at_best_workers,
    is_resized,
    prove,
    same_energy,
    same_hardware,
    same_learning,
    same_speed,
    same_split,
    undisturbed,
    whole_way,
    with_ranks_of,
)
from zeusrun.cost import cost_j
from zeusrun.target import worst_that_reaches
from zeusrun.trial import (
    TrialStatus,
    adapts,
    count_missing,
    epochs_of,
    is_baseline,
    scale_curve,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zeusrun.bandit.problem import Problem
    from zeusrun.trial import CurvePoint, PowerPoint, Trial

CUT_SHORT = TrialStatus.CANCELLED
_NEWEST = 20  # trials that show how long an epoch and a start are
_LEAST_J = 1e-6  # less is no cost: a meter or a clock stood still


def read_history(problem: Problem, trials: Sequence[Trial]) -> tuple[Problem, list[Observation]]:
    """Return ``read_trials`` without what teaches nothing."""
    problem, runs = read_trials(problem, trials)
    return problem, [run for run in runs if run is not None]


def read_trials(
    problem: Problem, every: Sequence[Trial]
) -> tuple[Problem, list[Observation | None]]:
    """Read the trials of a job, oldest first; those of another variant do not count.

    Returns:
        The problem, completed by what only the history shows (the length of an epoch; unless it is
        known, the kind of energy and the fingerprint of the newest trial); a run for each trial,
        ``None`` if it teaches nothing.
    """
    trials = [trial for trial in every if trial.variant == problem.variant]
    problem = complete(problem, trials)
    now = problem.fingerprint or {}
    # Earlier attempts of the recurrence trained as today, and are no further comparison.
    others = [trial for trial in trials if trial.recurrence != problem.recurrence]
    differences = find_differences(trials, now, compare_training(now, others).ignored)
    runs: dict[int, Observation] = {}
    for trial, seen, differs in zip(trials, at_best_workers(trials), differences, strict=True):
        if (run := read_trial(problem, seen)) is not None:
            runs[id(trial)] = run._replace(differs=differs)
    return problem, [runs.get(id(trial)) for trial in every]


def complete(problem: Problem, trials: Sequence[Trial]) -> Problem:
    """Add to a problem what only the history shows."""
    unit, samples = problem.unit, problem.samples_per_epoch
    measured, fingerprint = problem.energy_measured, problem.fingerprint
    if unit is None:
        unit = find_unit(problem.metric, problem.mode, trials)
        samples = unit or samples
    if samples is None:
        sizes = [size for trial in trials[-_NEWEST:] if (size := samples_per_epoch(trial))]
        samples = statistics.median(sizes) if sizes else None
    starts = [
        start_s
        for trial in trials[-_NEWEST:]
        if 0 < (start_s := trial.startup_s or 0.0) < math.inf and same_hardware(problem, trial)
    ]
    if measured is None:
        sources = (trial.energy_source for trial in reversed(trials) if trial.teaches)
        newest = next(filter(None, sources), None)
        measured = None if newest is None else newest.measured
    if fingerprint is None:
        then = next((t.fingerprint for t in reversed(trials) if t.fingerprint), {})
        fingerprint = {part: last_hash(then[part]) for part in then}
    return replace(
        problem,
        unit=unit,
        samples_per_epoch=samples,
        startup_s=statistics.median(starts) if starts else problem.startup_s,
        energy_measured=measured,
        fingerprint=fingerprint,
    )


def read_trial(problem: Problem, trial: Trial) -> Observation | None:
    """Read one trial; ``None`` if nothing can be learned from it today.

    ``prove`` says what of it counts. Every number is computed from the learning curve under today's
    target, ``max_epochs`` and ``eta_knob``, as if the trial had not been interrupted, and had kept
    its number of ranks. Epochs count if metric and learning rate are the same; time and energy, if
    GPUs, number of ranks, micro-batches and kind of energy are; crashes, if GPUs and micro-batches
    are. What an epoch cost on other devices is kept apart, as ``elsewhere``. A trial that is
    neither a success nor a failure by today's rules reads as cut short. A trial that shared its
    GPUs or CPUs reads as one of another machine, unless ``learn_from_shared`` is set; what an epoch
    cost is then the most that it may cost.
    """
    trial = with_ranks_of(problem, trial)
    status = trial.status
    # The batch size may have grown to what does not fit.
    arm = trial.last_batch_size if status is TrialStatus.OOM else trial.global_batch_size
    run = Observation(arm, trial.recurrence, status, trial.stage)
    if status is TrialStatus.DISPATCHED:
        return run
    proof = prove(trial, learn_from_shared=problem.learn_from_shared)
    if is_resized(trial):  # its power is that of several numbers of ranks
        trial = replace(trial, power_profile=())
    shared = proof.speed in {Doubt.SHARED, Doubt.SHORT}
    comparable = same_split(problem, trial) and same_energy(problem, trial)
    comparable = comparable and same_speed(problem, trial)
    same_devices = same_hardware(problem, trial)
    machine, measured = same_devices and same_split(problem, trial), same_devices and comparable
    if proof.nothing or (status in CRASHED and (shared or not machine)):
        return None
    if status in CRASHED:
        return run._replace(profile=trial.power_profile if measured else (), cause=trial.cause)
    # No attempt of the same recurrence makes the same failure again, whatever it proves.
    failed_now = status in FAILED and trial.recurrence == problem.recurrence
    run = run._replace(status=status if failed_now else CUT_SHORT, local=measured and not shared)
    trial = in_units(problem, trial)
    end = whole = undisturbed(trial, whole_way(trial))
    disturbed = shared or trial.interruptions or is_resized(trial)  # costly, not by its batch size
    if proof.learning is None and same_learning(problem, trial):
        run, end = _read_learning(problem, trial, run)
        if run.status is TrialStatus.STOPPED and disturbed and not failed_now:
            run = run._replace(status=CUT_SHORT)
    elif not (measured or failed_now):
        return None
    if not measured:
        if comparable and not disturbed:
            there = replace(problem, max_power_w=trial.max_power_w, levers=())
            cost = _read_speed(there, trial, run, end).epoch_cost_j
            speed = cost and SpeedElsewhere(trial.hardware, trial.max_power_w, cost)
            run = run._replace(elsewhere=speed or None)
        return run
    run = _read_speed(problem, trial, run, whole if shared else end)
    return run._replace(power_w=None, profile=(), disturbed=True) if shared else run


def _read_learning(
    problem: Problem, trial: Trial, run: Observation
) -> tuple[Observation, Way | None]:
    """Return a run with its outcome under today's rules and its cost, and how far it went."""
    epochs = epochs_of(trial.curve)
    # A script that ignored max_epochs then would do so again.
    limit = math.inf if epochs > trial.max_epochs else problem.epoch_limit
    pace, reached, last, step = _walk(problem, trial, limit)
    end = reached or (last if epochs > limit else None) or whole_way(trial)
    as_it_ended = trial.target == problem.target and trial.status is TrialStatus.REACHED
    if as_it_ended and trial.epochs and trial.epochs <= limit:
        reached = end = Way(trial.epochs, trial.time_s, trial.energy_j)
    end = undisturbed(trial, end)
    spent_j = None
    if reached and end and run.local:
        spent_j = cost_j(end.energy_j, trial.max_power_w, end.time_s, problem.eta_knob)
        if spent_j is not None:
            spent_j = _without_profiling(problem, trial, spent_j, end.epochs)
    status = TrialStatus.REACHED if reached else _failure(problem, trial, end)
    silent = status is TrialStatus.MISSED and problem.unit is None  # it never evaluates
    run = run._replace(
        status=status,
        epochs=end.epochs if end else problem.max_epochs if silent else None,
        last_step=step,
        cost_j=spent_j if spent_j and spent_j > _LEAST_J else None,
        pace=tuple(pace),
    )
    return run, end


def _walk(
    problem: Problem, trial: Trial, limit: float
) -> tuple[list[tuple[int, float]], Way | None, Way | None, tuple[int, float] | None]:
    """Return the pace, where the target was reached, and the last point within ``limit`` epochs.

    Then ``Observation.last_step``. A history has thousands of points: the loop calls no function
    for each.
    """
    minimise = problem.mode == "min"
    edge = worst_that_reaches(problem.target, problem.mode)
    pace: list[tuple[int, float]] = []
    curve, epochs, reported = trial.curve, 0, 0
    last: CurvePoint | None = None
    best: float | None = None
    reached = False
    step: tuple[int, float] | None = None
    more = count_missing(curve)
    if curve and is_baseline(curve[0]):  # no epoch: it shows from where the values improve
        best, curve = curve[0].value, curve[1:]
    for point in curve:
        at = point.epoch + more
        at = at if at > epochs else epochs + 1
        if at > limit:
            break
        last, epochs, value = point, at, point.value
        if value is None:
            continue
        if best is None or (value < best if minimise else value > best):
            pace.append((epochs, value))
            meets = value <= edge if minimise else value >= edge
            if meets and (point.epoch or trial.whole_steps):
                reached = True
                if best is not None:
                    step = epochs - reported, max(0.0, (edge - best) / (value - best))
                break
            best = value
        reported = epochs
    end = None if last is None else Way(epochs, last.time_s, last.energy_j)
    return pace, end if reached else None, end, step


def _failure(problem: Problem, trial: Trial, end: Way | None) -> TrialStatus:
    """Return ``MISSED`` or ``STOPPED`` for a failure by today's rules, else cut short."""
    if end is not None and end.epochs >= problem.epoch_limit:
        return TrialStatus.MISSED
    same = False
    if trial.status is TrialStatus.MISSED:
        same = trial.max_epochs >= problem.max_epochs
    elif trial.status is TrialStatus.STOPPED:
        # Another target has other costs, and so has its bound.
        same = (trial.eta_knob, trial.target) == (problem.eta_knob, problem.target)
    return trial.status if same else CUT_SHORT


def _read_speed(problem: Problem, trial: Trial, run: Observation, end: Way | None) -> Observation:
    """Return a run with what its epochs cost, and the power limits under which it ran."""
    per_epoch = power_w = None
    limit_w, profile = trial.power_limit_w, trial.power_profile
    steady = not trial.interruptions and not is_resized(trial)
    whole = trial.status is TrialStatus.STOPPED and steady
    if end is None and whole and problem.unit is None:
        end = Way(1, trial.time_s, trial.energy_j)  # an epoch costs more than this
    if end is not None and end.epochs > 0:
        spent = cost_j(end.energy_j, trial.max_power_w, end.time_s, problem.eta_knob)
        per_epoch = spent / end.epochs if spent and spent > _LEAST_J else None
        if end.energy_j is not None and end.time_s:
            power_w = end.energy_j / end.time_s
    if profile:
        power_w = max(point.power_w for point in profile)
        if not _epochs_were_trained(problem, trial, end):
            per_epoch = None
    if len(profile) > 1 or (profile and per_epoch is None):
        # Only the chosen limit counts; probing others is not charged to the arm.
        best, best_j = _best_epoch_j(problem, trial)
        if best is not None and problem.samples_per_epoch:
            limit_w = best.power_limit_w
            known = trial.profiling_cost_j is not None and trial.eta_knob == problem.eta_knob
            if per_epoch is not None and end and known:
                # This cost includes evaluations, checkpoints and stalls; that of steps does not.
                spent = _without_profiling(problem, trial, per_epoch * end.epochs, end.epochs)
                per_epoch = spent / end.epochs
            elif best_j is not None:
                per_epoch = best_j
    return run._replace(
        epoch_cost_j=per_epoch, power_limit_w=limit_w, power_w=power_w, profile=profile
    )


def _without_profiling(problem: Problem, trial: Trial, spent_j: float, epochs: int) -> float:
    """Return a cost less that of probing power limits, where that is known by today's ``eta_knob``.

    It is at least the cost of the epochs without probing.
    """
    extra_j = trial.profiling_cost_j if trial.eta_knob == problem.eta_knob else None
    if extra_j is None or extra_j <= 0:
        return spent_j
    _, epoch_j = _best_epoch_j(problem, trial)
    left_j = max(spent_j - extra_j, _LEAST_J if epoch_j is None else epoch_j * epochs)
    return left_j if _LEAST_J < left_j < spent_j else spent_j


def _best_epoch_j(problem: Problem, trial: Trial) -> tuple[PowerPoint | None, float | None]:
    """Return the point that the power objective chooses, and the cost of an epoch there."""
    today = problem.levers
    may_be_held = [point for point in trial.power_profile if point.lever in today]
    best = chosen_point(may_be_held or trial.power_profile, problem)
    step_j = None if best is None else step_cost_j(best, problem)
    if step_j is None or problem.samples_per_epoch is None:
        return best, None
    epoch_j = step_j * problem.samples_per_epoch / trial.global_batch_size
    return best, epoch_j if _LEAST_J < epoch_j < math.inf else None


def _epochs_were_trained(problem: Problem, trial: Trial, end: Way | None) -> bool:
    """Whether the trial took at least half the steps of its epochs; an evaluation takes none."""
    if problem.samples_per_epoch is None or trial.whole_steps is None or end is None:
        return True
    samples = trial.whole_steps * trial.global_batch_size
    return samples >= 0.5 * end.epochs * problem.samples_per_epoch


# Other trials end within an epoch, so their steps do not show its length.
_WHOLE = frozenset({TrialStatus.REACHED, TrialStatus.MISSED})
_ONE_PASS, _ENOUGH_EPOCHS = 0.1, 3
_UNITS = 20  # so that rounding to whole units does no harm


def samples_per_epoch(trial: Trial) -> float | None:
    """Return the samples of an epoch by a whole trial; ``None`` if it does not show them."""
    epochs = epochs_of(trial.curve)
    # Its steps had several batch sizes, or include those that an interruption lost.
    if adapts(trial.variant) or trial.preemptions or trial.interruptions:
        return None
    if not trial.teaches or trial.status not in _WHOLE or not trial.whole_steps or not epochs:
        return None
    return trial.whole_steps * trial.global_batch_size / epochs


def find_unit(metric: str, mode: str, trials: Iterable[Trial]) -> int | None:
    """Return samples that count as an epoch: a part of the shortest way to a first report.

    ``None`` if trainings report the metric once an epoch of their data. Others report it within
    epochs, or after a number of steps that is the same for all batch sizes.
    """
    counting = [
        trial
        for trial in trials
        if (trial.metric, trial.mode) == (metric, mode) and prove(trial).learning is None
    ]
    firsts = (next((p.epoch for p in trial.by_samples if p.epoch), 0) for trial in counting)
    known = [float(first) for first in firsts if first] or _samples_of_fixed_steps(counting)
    return max(1, int(min(known)) // _UNITS) if known else None


def _samples_of_fixed_steps(trials: Iterable[Trial]) -> list[float]:
    """Return the samples of an epoch by batch size, if the epoch is a fixed number of steps.

    An epoch that is one pass over the data does not count: the data may have grown. Where the
    samples are unknown, steps after the last report are counted, so a run needs a few epochs.
    """
    samples: dict[int, float] = {}
    for trial in trials:
        if whole := samples_per_epoch(trial):
            epochs, seen, passes = epochs_of(trial.curve), trial.whole_samples, trial.whole_progress
            if passes is not None and abs(passes / epochs - 1) < _ONE_PASS:
                return []
            if seen is not None or epochs >= _ENOUGH_EPOCHS:
                samples[trial.global_batch_size] = whole if seen is None else seen / epochs
    if len(samples) < 2:
        return []
    steps = [whole / size for size, whole in samples.items()]
    # Of equal data, steps would be as many times fewer as the batch size is larger.
    fixed = max(steps) / min(steps) < math.sqrt(max(samples) / min(samples))
    return list(samples.values()) if fixed else []


def in_units(problem: Problem, trial: Trial) -> Trial:
    """Return a trial with ``problem.unit`` samples for an epoch; without epochs if it cannot be."""
    if problem.unit is None or not (trial.curve or trial.epochs):
        return trial
    if trial.by_samples:
        curve = scale_curve(trial.by_samples, 0, 1 / problem.unit, least=1)
    else:
        epochs, seen = epochs_of(trial.curve), trial.whole_samples
        whole = seen / epochs if seen and epochs else samples_per_epoch(trial) or 0.0
        scale = whole / problem.unit
        curve = (
            scale_curve(trial.curve, count_missing(trial.curve), scale, least=1) if scale else ()
        )
    return replace(trial, curve=curve, epochs=None)


def by_epochs_done(curve: Sequence[CurvePoint]) -> Sequence[CurvePoint]:
    """Return a curve by the epochs done, also of a loop that counts from 0."""
    more = count_missing(curve)
    return scale_curve(curve, more, 1) if more else curve
