"""Reads stored trials under today's problem."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.bandit.eras import compare_training, find_differences, last_hash
from zeusrun.bandit.likeness import same_energy, same_hardware, same_learning, same_split
from zeusrun.bandit.observation import FAILED, Run, step_cost_j
from zeusrun.bandit.power import chosen_point
from zeusrun.bandit.proof import CRASHED, Doubt, Way, prove, undisturbed, whole_way
from zeusrun.cost import cost_j
from zeusrun.target import worst_that_reaches
from zeusrun.trial import (
    CurvePoint,
    PowerPoint,
    Trial,
    TrialStatus,
    counts_from_zero,
    epochs_of,
    is_baseline,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zeusrun.bandit.problem import Problem

CUT_SHORT = TrialStatus.CANCELLED
# Other trials end within an epoch, so their steps do not show its length.
_WHOLE = frozenset({TrialStatus.REACHED, TrialStatus.MISSED})
_UNITS = 20  # so that rounding to whole units does no harm
_LEAST_J = 1e-6  # less is no cost: a meter or a clock stood still


def read_history(problem: Problem, trials: Sequence[Trial]) -> tuple[Problem, list[Run]]:
    """Return ``read_trials`` without what teaches nothing."""
    problem, runs = read_trials(problem, trials)
    return problem, [run for run in runs if run is not None]


def read_trials(problem: Problem, every: Sequence[Trial]) -> tuple[Problem, list[Run | None]]:
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
    ignored = compare_training(now, others).ignored
    differences = find_differences(trials, now, ignored)
    read = [read_trial(problem, trial) for trial in trials]
    runs = iter(
        run if run is None or differs is None else run._replace(differs=differs)
        for run, differs in zip(read, differences, strict=True)
    )
    return problem, [next(runs) if each.variant == problem.variant else None for each in every]


def read_trial(problem: Problem, trial: Trial) -> Run | None:
    """Read one trial; ``None`` if nothing can be learned from it today.

    ``prove`` says what of it counts. Every number is computed from the learning curve under today's
    target, ``max_epochs`` and ``eta_knob``, as if the trial had not been interrupted. Epochs count
    if metric and learning rate are the same; time and energy, if GPUs, number of ranks,
    micro-batches and kind of energy are; crashes, if GPUs and micro-batches are. A trial that is
    neither a success nor a failure by today's rules reads as cut short. A trial that shared its
    GPUs or CPUs reads as one of another machine, unless ``learn_from_shared`` is set; what an epoch
    cost is then the most that it may cost.
    """
    status = trial.status
    run = Run(trial.global_batch_size, trial.recurrence, status, trial.stage)
    if status is TrialStatus.DISPATCHED:
        return run
    proof = prove(trial, learn_from_shared=problem.learn_from_shared)
    trial = in_units(problem, trial)
    machine = same_hardware(problem, trial) and same_split(problem, trial)
    shared = proof.speed in {Doubt.SHARED, Doubt.SHORT}
    local = machine and not shared
    if proof.nothing or (status in CRASHED and not local):
        return None
    local_energy = local and same_energy(problem, trial)
    if status is TrialStatus.OOM:  # the batch size may have grown to what does not fit
        run = run._replace(arm=trial.last_batch_size)
    if status in CRASHED:
        return run._replace(profile=trial.power_profile if local_energy else ())
    # No attempt of the same recurrence makes the same failure again, whatever it proves.
    failed_now = status in FAILED and trial.recurrence == problem.recurrence
    run = run._replace(status=status if failed_now else CUT_SHORT, local=local_energy)
    disturbed = shared and machine and same_energy(problem, trial)
    if proof.learning is None and same_learning(problem, trial):
        run = _with_learning(problem, trial, run)
        costly = shared or trial.interruptions  # not by its batch size
        if run.status is TrialStatus.STOPPED and costly and not failed_now:
            run = run._replace(status=CUT_SHORT)
    elif run.local:
        return _with_speed(problem, trial, run, undisturbed(trial, whole_way(trial)))
    elif not failed_now and not disturbed:
        return None
    if disturbed:
        timed = _with_speed(problem, trial, run, undisturbed(trial, whole_way(trial)))
        per_epoch, limit_w = timed.epoch_cost_j, timed.power_limit_w
        run = run._replace(epoch_cost_j=per_epoch, power_limit_w=limit_w, disturbed=True)
    return run


def complete(problem: Problem, trials: Sequence[Trial]) -> Problem:
    """Add to a problem what only the history shows."""
    unit = problem.unit or find_unit(problem.metric, problem.mode, trials)
    if problem.unit is None and unit is not None:
        return complete(replace(problem, unit=unit, samples_per_epoch=unit), trials)
    if problem.samples_per_epoch is None:
        sizes = [size for trial in trials[-20:] if (size := samples_per_epoch(trial))]
        if sizes:
            problem = replace(problem, samples_per_epoch=statistics.median(sizes))
    if problem.energy_measured is None:
        sources = (trial.energy_source for trial in reversed(trials) if trial.teaches)
        newest = next((source for source in sources if source is not None), None)
        problem = replace(problem, energy_measured=None if newest is None else newest.measured)
    if problem.fingerprint is None:
        then = next((t.fingerprint for t in reversed(trials) if t.fingerprint), {})
        problem = replace(problem, fingerprint={part: last_hash(then[part]) for part in then})
    return problem


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
    firsts = [samples for samples in firsts if samples]
    return max(1, min(firsts) // _UNITS) if firsts else None


def in_units(problem: Problem, trial: Trial) -> Trial:
    """Return a trial with ``problem.unit`` samples for an epoch; without epochs if it cannot be."""
    unit = problem.unit
    if unit is None or not (trial.curve or trial.epochs):
        return trial
    curve, scale, more = trial.by_samples, 1 / unit, False
    if not curve:
        whole = samples_per_epoch(trial)
        curve, scale = (trial.curve, whole / unit) if whole is not None else ((), 0.0)
        own = curve[1:] if curve and is_baseline(curve[0]) else curve
        more = counts_from_zero(tuple(point.epoch for point in own[:3]))
    units = tuple(
        point
        if is_baseline(point)
        else point._replace(epoch=max(1, round((point.epoch + more) * scale)))
        for point in curve
    )
    return replace(trial, curve=units, epochs=None)


def spread_samples(
    curve: Sequence[CurvePoint], samples: int | None, since: int = 0
) -> tuple[CurvePoint, ...]:
    """Return a curve by epochs with the samples so far for epochs; empty if they are unknown.

    ``samples``: at its last point. ``since``: the last epoch before a curve that goes on.
    """
    own = curve[1:] if curve and is_baseline(curve[0]) else curve
    more = 0 if since else counts_from_zero(tuple(point.epoch for point in own[:3]))
    epochs = own[-1].epoch + more - since if own else 0
    if not samples or epochs <= 0:
        return ()
    each = samples / epochs
    return tuple(
        point
        if is_baseline(point)
        else point._replace(epoch=round((point.epoch + more - since) * each))
        for point in curve
    )


def samples_per_epoch(trial: Trial) -> float | None:
    """Return the samples of an epoch by a whole trial; ``None`` if it does not show them."""
    epochs = epochs_of(trial.curve)
    # Its steps had several batch sizes, or include those that an interruption lost.
    if trial.variant is not None or trial.preemptions or trial.interruptions:
        return None
    if not trial.teaches or trial.status not in _WHOLE or not trial.steps or not epochs:
        return None
    return trial.steps * trial.global_batch_size / epochs


def _with_learning(problem: Problem, trial: Trial, run: Run) -> Run:
    """Add the outcome of a trial under today's rules, its cost and its speed."""
    epochs = epochs_of(trial.curve)
    # A script that ignored max_epochs then would do so again.
    most = math.inf if epochs > trial.max_epochs else problem.most_epochs
    pace, reached, last = _walk(problem, trial, most)
    end = reached or (last if epochs > most else None) or whole_way(trial)
    as_it_ended = trial.target == problem.target and trial.status is TrialStatus.REACHED
    if as_it_ended and trial.epochs and trial.epochs <= most:
        reached = end = Way(trial.epochs, trial.time_s, trial.energy_j)
    end = undisturbed(trial, end)
    spent = None
    if reached and end and run.local:
        spent = cost_j(end.energy_j, trial.max_power_w, end.time_s, problem.eta_knob)
        if spent is not None:
            spent = _less_profiling_j(problem, trial, spent, end.epochs)
    status = TrialStatus.REACHED if reached else _failure(problem, trial, end)
    silent = status is TrialStatus.MISSED and problem.unit is None  # it never evaluates
    run = run._replace(
        status=status,
        epochs=end.epochs if end else problem.max_epochs if silent else None,
        cost_j=spent if spent and spent > _LEAST_J else None,
        pace=tuple(pace),
    )
    return _with_speed(problem, trial, run, end) if run.local else run


def _walk(
    problem: Problem, trial: Trial, most: float
) -> tuple[list[tuple[int, float]], Way | None, Way | None]:
    """Return the pace, where the target was reached, and the last point within ``most`` epochs.

    A history has thousands of points: the loop calls no function for each.
    """
    minimise = problem.mode == "min"
    edge = worst_that_reaches(problem.target, problem.mode)
    pace: list[tuple[int, float]] = []
    curve, epochs = trial.curve, 0
    last: CurvePoint | None = None
    best: float | None = None
    reached = False
    if curve and is_baseline(curve[0]):  # no epoch: it shows from where the values improve
        best, curve = curve[0].value, curve[1:]
    more = counts_from_zero(tuple(point.epoch for point in curve[:3]))
    for point in curve:
        at = point.epoch + more
        at = at if at > epochs else epochs + 1
        if at > most:
            break
        last, epochs, value = point, at, point.value
        if value is None:
            continue
        if best is None or (value < best if minimise else value > best):
            best = value
            pace.append((epochs, value))
            meets = value <= edge if minimise else value >= edge
            if meets and (point.epoch or trial.steps):
                reached = True
                break
    end = None if last is None else Way(epochs, last.time_s, last.energy_j)
    return pace, end if reached else None, end


def _failure(problem: Problem, trial: Trial, end: Way | None) -> TrialStatus:
    """Return ``MISSED`` or ``STOPPED`` for a failure by today's rules, else cut short."""
    if end is not None and end.epochs >= problem.most_epochs:
        return TrialStatus.MISSED
    same = False
    if trial.status is TrialStatus.MISSED:
        same = trial.max_epochs >= problem.max_epochs
    elif trial.status is TrialStatus.STOPPED:
        # Another target has other costs, and so has its bound.
        same = (trial.eta_knob, trial.target) == (problem.eta_knob, problem.target)
    return trial.status if same else CUT_SHORT


def _best_epoch_j(problem: Problem, trial: Trial) -> tuple[PowerPoint | None, float | None]:
    """Return the point that the power objective chooses, and the cost of an epoch there."""
    may_be_held = [point for point in trial.power_profile if point.lever in problem.levers]
    best = chosen_point(may_be_held or trial.power_profile, problem)
    step_j = None if best is None else step_cost_j(best, problem)
    if step_j is None or problem.samples_per_epoch is None:
        return best, None
    epoch_j = step_j * problem.samples_per_epoch / trial.global_batch_size
    return best, epoch_j if _LEAST_J < epoch_j < math.inf else None


def _profiling_j(problem: Problem, trial: Trial) -> float | None:
    """Return what probing power limits cost, by today's ``eta_knob``; ``None`` if unknown."""
    return trial.profiling_cost_j if trial.eta_knob == problem.eta_knob else None


def _less_profiling_j(problem: Problem, trial: Trial, spent_j: float, epochs: int) -> float:
    """Return a cost less that of probing, but at least the cost of the epochs without it."""
    extra_j = _profiling_j(problem, trial)
    if extra_j is None or extra_j <= 0:
        return spent_j
    _, epoch_j = _best_epoch_j(problem, trial)
    left_j = max(spent_j - extra_j, _LEAST_J if epoch_j is None else epoch_j * epochs)
    return left_j if _LEAST_J < left_j < spent_j else spent_j


def _with_speed(problem: Problem, trial: Trial, run: Run, end: Way | None) -> Run:
    per_epoch = power_w = None
    limit_w, profile = trial.power_limit_w, trial.power_profile
    whole = trial.status is TrialStatus.STOPPED and not trial.interruptions
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
            if per_epoch is not None and end and _profiling_j(problem, trial) is not None:
                # This cost includes evaluations, checkpoints and stalls; that of steps does not.
                spent = _less_profiling_j(problem, trial, per_epoch * end.epochs, end.epochs)
                per_epoch = spent / end.epochs
            elif best_j is not None:
                per_epoch = best_j
    return run._replace(
        epoch_cost_j=per_epoch, power_limit_w=limit_w, power_w=power_w, profile=profile
    )


def _epochs_were_trained(problem: Problem, trial: Trial, end: Way | None) -> bool:
    """Whether the trial took at least half the steps of its epochs; an evaluation takes none."""
    if problem.samples_per_epoch is None or trial.steps is None or end is None:
        return True
    return trial.steps * trial.global_batch_size >= 0.5 * end.epochs * problem.samples_per_epoch
