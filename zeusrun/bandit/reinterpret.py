"""Reads the history again under the problem of today: nothing is discarded that still teaches."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.bandit.observation import Run, better, step_cost_j
from zeusrun.bandit.power import chosen_point
from zeusrun.cost import cost_j
from zeusrun.target import worst_that_reaches
from zeusrun.trial import CurvePoint, PowerPoint, Trial, TrialStatus, epochs_of, is_baseline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.problem import Problem

_CUT_SHORT = TrialStatus.CANCELLED
# Others end within an epoch, and their steps say nothing of its length.
WHOLE = frozenset({TrialStatus.REACHED, TrialStatus.MISSED})
_LEAST_J = 1e-6  # nothing is free: a meter or a clock stood still
CRASHED = frozenset({TrialStatus.OOM, TrialStatus.FAILED})


def read_history(problem: Problem, trials: Sequence[Trial]) -> tuple[Problem, list[Run]]:
    """Read all trials of a job, oldest first.

    Returns:
        The problem, completed by what only the history knows (the length of an epoch and, where
        the device gives no energy, the kind of energy of the newest trial), and the runs in the
        order given.
    """
    problem = completed(problem, trials)
    read = (read_trial(problem, trial) for trial in trials)
    return problem, [run for run in read if run is not None]


def read_trial(problem: Problem, trial: Trial) -> Run | None:
    """Read one trial; ``None`` if it says nothing of any batch size today.

    Every number is taken from the learning curve under today's target, ``max_epochs`` and
    ``eta_knob``. Epochs need the same metric and learning rate; time and energy the same GPUs,
    number of ranks and kind of energy; crashes, for memory or not, the same GPUs alone. A trial
    that ended before it could tell today's success from failure reads as cut short. A trial that
    shared its GPUs with others reads as one of another machine, unless the problem says otherwise.
    """
    status = trial.status
    arm = trial.global_batch_size
    local = same_hardware(problem, trial) and not disturbed(problem, trial)
    if status is TrialStatus.DISPATCHED:
        return Run(arm, trial.recurrence, status, trial.stage)
    if unrelated_end(trial) is not None or (status in CRASHED and not local):
        return None
    if status in CRASHED:
        told = trial.power_profile if same_energy(problem, trial) else ()
        return Run(arm, trial.recurrence, status, trial.stage, profile=told)
    local = local and same_energy(problem, trial)
    if not same_learning(problem, trial):
        run = Run(arm, trial.recurrence, _CUT_SHORT, trial.stage, local=local)
        return _with_speed(problem, trial, run, _whole(trial)) if local else None
    run = _read_learning(problem, trial, local=local)
    if run.status is TrialStatus.STOPPED and disturbed(problem, trial):
        return run._replace(status=_CUT_SHORT)  # others may have made it dear
    return run


def completed(problem: Problem, trials: Sequence[Trial]) -> Problem:
    """Return the problem with what only the history knows; see ``read_history``."""
    if problem.samples_per_epoch is None:
        sizes = [size for trial in trials[-20:] if (size := _samples_per_epoch(trial))]
        if sizes:
            problem = replace(problem, samples_per_epoch=statistics.median(sizes))
    if problem.energy_measured is None:
        sources = (trial.energy_source for trial in reversed(trials) if trial.teaches)
        newest = next((source for source in sources if source is not None), None)
        problem = replace(problem, energy_measured=None if newest is None else newest.measured)
    return problem


def _samples_per_epoch(trial: Trial) -> float | None:
    epochs = epochs_of(trial.curve)
    if not trial.teaches or trial.status not in WHOLE or not trial.steps or not epochs:
        return None
    return trial.steps * trial.global_batch_size / epochs


def same_hardware(problem: Problem, trial: Trial) -> bool:
    """Whether a trial tells how fast and dear training is on the job's devices.

    Of a CPU, its maximum power is compared, too: its cores times the watts of each. With another
    number of either, all costs are other ones.
    """
    then_w, now_w = trial.max_power_w, problem.max_power_w
    if problem.gpu_count == 0 and None not in (then_w, now_w) and then_w != now_w:
        return False
    now = (problem.gpu_model, problem.gpu_count, problem.world_size)
    return (trial.gpu_model, trial.gpu_count, trial.world_size) == now


def disturbed(problem: Problem, trial: Trial) -> bool:
    """Whether others used the trial's GPUs, so that it says nothing of speed, cost or crashes."""
    return trial.shared is True and not problem.learn_from_shared


def same_energy(problem: Problem, trial: Trial) -> bool:
    """Whether joules of a trial and of today can be compared: measured with measured ones."""
    source = trial.energy_source
    return problem.eta_knob == 0 or source is None or source.measured == problem.energy_measured


def same_learning(problem: Problem, trial: Trial) -> bool:
    """Whether the epochs of a trial are those that its batch size would take today."""
    if (trial.metric, trial.mode) != (problem.metric, problem.mode):
        return False
    if trial.global_batch_size not in problem.learning_rates:  # no candidate now: as it was then
        return True
    then, now = trial.learning_rate, problem.learning_rates[trial.global_batch_size]
    if then is None or now is None:
        return then == now
    return then == now or math.isclose(then, now, rel_tol=1e-9)


class _End(NamedTuple):
    """Where the reading of a trial ends."""

    epochs: int
    time_s: float | None
    energy_j: float | None


def unrelated_end(trial: Trial) -> str | None:
    """Return why a trial says nothing of its batch size, if it does not."""
    if trial.forgotten:
        return "forgotten by 'history --forget'"
    if not trial.teaches:
        return f"trained with batch size {trial.observed_batch_size}, not with its own"
    if trial.status is TrialStatus.LOST:
        return "ended without an outcome"
    if trial.status is TrialStatus.FAILED and trial.cause is None:
        return "failed without a crash"  # somebody ended it, or it never reported the metric
    return "was stopped before the first step" if _never_trained(trial) else None


def _never_trained(trial: Trial) -> bool:
    """Whether a trial was stopped before its first step; it may have evaluated as epoch 0."""
    if trial.status is not TrialStatus.STOPPED or trial.steps:
        return False
    if trial.curve:
        return all(point.epoch == 0 for point in trial.curve)
    return trial.time_s is None and not trial.epochs


def _whole(trial: Trial) -> _End | None:
    if trial.curve:
        last = trial.curve[-1]
        return _End(epochs_of(trial.curve), last.time_s, last.energy_j)
    if trial.epochs:
        return _End(trial.epochs, trial.time_s, trial.energy_j)
    return None


def _read_learning(problem: Problem, trial: Trial, *, local: bool) -> Run:
    most = _max_epochs(problem, trial)
    pace, reached, last = _walk(problem, trial.curve, most)
    end = reached or (last if epochs_of(trial.curve) > most else None) or _whole(trial)
    as_it_ended = trial.target == problem.target and trial.status is TrialStatus.REACHED
    if as_it_ended and trial.epochs is not None and trial.epochs <= most:
        reached = end = _End(trial.epochs, trial.time_s, trial.energy_j)
    status = TrialStatus.REACHED if reached else _failed(problem, trial, end)
    spent = None
    if reached and local:
        spent = cost_j(reached.energy_j, trial.max_power_w, reached.time_s, problem.eta_knob)
        spent = _less_profiling_j(problem, trial, spent, reached.epochs)
    run = Run(
        arm=trial.global_batch_size,
        recurrence=trial.recurrence,
        status=status,
        stage=trial.stage,
        epochs=end.epochs if end else None,
        cost_j=spent if spent and spent > _LEAST_J else None,
        local=local,
        pace=tuple(pace),
    )
    return _with_speed(problem, trial, run, end) if local else run


def _max_epochs(problem: Problem, trial: Trial) -> float:
    """Return how many epochs of a trial count.

    A script with a loop of its own may train past ``max_epochs``. That rule does not end it, so
    what it reached then it would reach again.
    """
    return math.inf if epochs_of(trial.curve) > trial.max_epochs else problem.max_epochs


def _walk(
    problem: Problem, curve: Sequence[CurvePoint], most: float
) -> tuple[list[tuple[int, float]], _End | None, _End | None]:
    """Return the pace, where the target was reached, and the last point within ``most`` epochs.

    Histories hold many thousand points: nothing is called and nothing made for each.
    """
    minimise = problem.mode == "min"
    edge = worst_that_reaches(problem.target, problem.mode)
    pace: list[tuple[int, float]] = []
    epochs = -1 if curve and is_baseline(curve[0]) else 0
    within = 0
    last: CurvePoint | None = None
    best: float | None = None
    reached = False
    for point in curve:
        epochs = point.epoch if point.epoch > epochs else epochs + 1
        if epochs > most:
            break
        last, within, value = point, max(1, epochs), point.value
        if value is None:
            continue
        if best is None or (value < best if minimise else value > best):
            best = value
            if epochs > 0:  # an evaluation before training is no part of the pace
                pace.append((epochs, value))
            reached = value <= edge if minimise else value >= edge
            if reached:
                break
    end = None if last is None else _End(within, last.time_s, last.energy_j)
    return pace, end if reached else None, end


def _failed(problem: Problem, trial: Trial, end: _End | None) -> TrialStatus:
    """Tell a failure under today's rules from a run that was only cut short."""
    if end is not None and end.epochs >= problem.max_epochs:
        return TrialStatus.MISSED
    if trial.status is TrialStatus.MISSED:
        return trial.status if trial.max_epochs >= problem.max_epochs else _CUT_SHORT
    if trial.status is TrialStatus.STOPPED:
        easier = better(problem.mode, trial.target, problem.target)
        same = trial.eta_knob == problem.eta_knob and not easier
        return trial.status if same else _CUT_SHORT
    return _CUT_SHORT


def _best_epoch_j(problem: Problem, trial: Trial) -> tuple[PowerPoint | None, float | None]:
    """Return the point of the limit that the objective chooses, and what an epoch costs there."""
    today = problem.power_limits_w
    may_be_held = [point for point in trial.power_profile if point.power_limit_w in today]
    best = chosen_point(may_be_held or trial.power_profile, problem)
    step_j = None if best is None else step_cost_j(best, problem)
    if step_j is None or problem.samples_per_epoch is None:
        return best, None
    return best, step_j * problem.samples_per_epoch / trial.global_batch_size


def _knows_profiling(problem: Problem, trial: Trial) -> bool:
    """Whether it is known what trying limits took, in today's joules of cost."""
    return trial.profiling_cost_j is not None and trial.eta_knob == problem.eta_knob


def _less_profiling_j(
    problem: Problem, trial: Trial, spent_j: float | None, epochs: int
) -> float | None:
    """Return the cost of a run that reached the target, less what trying other limits took.

    Never less than its epochs cost at the limit chosen.
    """
    extra_j = trial.profiling_cost_j
    if spent_j is None or extra_j is None or extra_j <= 0 or not _knows_profiling(problem, trial):
        return spent_j
    _, epoch_j = _best_epoch_j(problem, trial)
    least_j = _LEAST_J if epoch_j is None else epoch_j * epochs
    left_j = max(spent_j - extra_j, least_j)
    return left_j if _LEAST_J < left_j < spent_j else spent_j


def _with_speed(problem: Problem, trial: Trial, run: Run, end: _End | None) -> Run:
    """Add what the trial says of speed and power."""
    per_epoch = power_w = None
    limit_w = trial.power_limit_w
    if end is None and trial.status is TrialStatus.STOPPED:
        end = _End(1, trial.time_s, trial.energy_j)  # an epoch costs more than this
    if end is not None and end.epochs > 0:
        spent = cost_j(end.energy_j, trial.max_power_w, end.time_s, problem.eta_knob)
        per_epoch = spent / end.epochs if spent and spent > _LEAST_J else None
        if end.energy_j is not None and end.time_s:
            power_w = end.energy_j / end.time_s
    profile = trial.power_profile
    if per_epoch is not None and profile and not _epochs_were_trained(problem, trial, end):
        per_epoch = None
    if profile:
        power_w = max(point.power_w for point in profile)
    if len(profile) > 1 or (profile and per_epoch is None):
        # It ran under several limits: only the one chosen counts, probing is not the arm's.
        best, best_j = _best_epoch_j(problem, trial)
        if best is not None and problem.samples_per_epoch:
            limit_w = best.power_limit_w
            if per_epoch is not None and end is not None and _knows_profiling(problem, trial):
                # With what is no step: evaluations, checkpoints, stalls.
                whole_j = _less_profiling_j(problem, trial, per_epoch * end.epochs, end.epochs)
                per_epoch = per_epoch if whole_j is None else whole_j / end.epochs
            else:
                per_epoch = per_epoch if best_j is None else best_j
    return run._replace(
        epoch_cost_j=per_epoch, power_limit_w=limit_w, power_w=power_w, profile=profile
    )


def _epochs_were_trained(problem: Problem, trial: Trial, end: _End | None) -> bool:
    """Whether steps were taken for the epochs reported; an evaluation before training has none."""
    if problem.samples_per_epoch is None or trial.steps is None or end is None:
        return True
    return trial.steps * trial.global_batch_size >= 0.5 * end.epochs * problem.samples_per_epoch
