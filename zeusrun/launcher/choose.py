"""Chooses the next trial of a job. Writes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.bandit.auto.policy import bound_of_proven
from zeusrun.bandit.problem import PowerObjective, Problem
from zeusrun.bandit.reinterpret import describe_kept, read_history
from zeusrun.bandit.stopping import is_last_attempt
from zeusrun.clock import timestamp
from zeusrun.errors import UsageError
from zeusrun.files.home import runs_directory
from zeusrun.history.base import NEWEST
from zeusrun.launcher.processes.command import build_command
from zeusrun.launcher.resume import find_preempted, why_not_continued
from zeusrun.launcher.rundir.layout import RunPaths, find_run, numbered_runs
from zeusrun.launcher.rundir.record import has_begun
from zeusrun.trial import Decision, Stage, Trial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.observation import Run
    from zeusrun.energy.device import Device
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.processes.command import Command


@dataclass(frozen=True)
class Choice:
    """The next trial of a job, and what it was chosen from. Nothing of it is on disk yet.

    Attributes:
        trial: A new one, or a preempted one that goes on.
        problem: What the policy was asked, completed by what only the history knows.
        runs: The history as it reads under the problem.
        decision: The answer that the trial carries out.
        kept: Sentences on past trials that are read otherwise than they ended.
        limit_w: The power limit that all GPUs begin with, in watts per GPU; ``None`` if they have
            none. A preempted trial may have had another one before.
        note: Why a preempted trial is not continued; ``None`` if there is none.
    """

    trial: Trial
    problem: Problem
    runs: tuple[Run, ...]
    decision: Decision
    kept: tuple[str, ...] = ()
    limit_w: float | None = None
    note: str | None = None


def choose_next(
    submission: Submission, trials: Sequence[Trial], recurrence: int | None, attempt: int
) -> Choice:
    """Choose the next trial.

    Args:
        submission: The job and all it needs.
        trials: The newest of the job, oldest first.
        recurrence: Which recurrence it is an attempt of; ``None`` continues the trial that was
            preempted, else begins the next recurrence.
        attempt: Its number within the recurrence, from 1.

    Raises:
        UsageError: If the user's own choice is not among the candidates.
    """
    preempted = find_preempted(trials) if recurrence is None else None
    note = None if preempted is None else _why_not(submission, preempted)
    if note is not None:
        preempted = None
    number = recurrence if preempted is None else preempted.recurrence
    problem = build_problem(submission, trials, number)
    sentences = tuple(describe_kept(problem, trials))
    problem, runs = read_history(problem, trials)
    limit_w = _limit_in_force(submission)
    if preempted is None:
        decision = decide(submission, problem, runs, attempt)
        trial = _draft_trial(submission, decision, problem.recurrence, attempt, limit_w)
    else:
        trial = preempted.resume(timestamp(), submission.host)
        if trial.time_s is None:  # it was preempted before its training began
            trial = replace(trial, power_limit_w=limit_w)
        decision = _continued(problem, runs, trial)
    return Choice(trial, problem, tuple(runs), decision, sentences, limit_w, note)


def _why_not(submission: Submission, preempted: Trial) -> str | None:
    paths = find_run(submission.home, preempted)
    has_files = paths is not None and paths.job_copy.is_file()
    why = why_not_continued(submission, preempted, has_files=has_files)
    return None if why is None else f"{preempted.trial} was preempted and is not continued: {why}"


def _continued(problem: Problem, runs: Sequence[Run], trial: Trial) -> Decision:
    """Return what a preempted trial carries out: its own batch size, under the bound of any run.

    A speed check that it began with is over.
    """
    stage = Stage.EXPLORE if trial.stage is Stage.LOOK else trial.stage
    bound = bound_of_proven(problem, runs)
    return Decision(trial.global_batch_size, stage, trial.why, bound=bound)


def build_problem(
    submission: Submission, trials: Sequence[Trial], recurrence: int | None = None
) -> Problem:
    """Return the policy's problem, by default for the next recurrence of the job."""
    spec, gpus = submission.spec, submission.gpus
    sources = [device.energy_source for device in submission.devices]
    made = [trial for trial in trials if trial.recurrence == recurrence]
    sizes = {*spec.batch_size.candidates, *(trial.global_batch_size for trial in trials)}
    return Problem(
        candidates=spec.batch_size.candidates,
        default=spec.batch_size.default,
        metric=spec.objective.metric,
        mode=spec.objective.mode,
        target=spec.objective.target,
        max_epochs=spec.objective.max_epochs,
        eta_knob=spec.objective.eta_knob,
        cost_factor=spec.early_stop.cost_factor,
        window=spec.policy.window,
        recurrence=next_recurrence(submission, trials) if recurrence is None else recurrence,
        last_attempt=is_last_attempt(made, spec.attempts),
        world_size=submission.world_size,
        gpu_model=gpus[0].model if gpus else None,
        gpu_count=len(gpus),
        energy_measured=all(source.measured for source in sources) if sources else None,
        learning_rates={size: spec.learning_rate_for(size) for size in sorted(sizes)},
        max_power_w=_max_power_w(submission.devices),
        power_limits_w=submission.power_limits_w,
        power_objective=PowerObjective(spec.power_limit.objective, spec.power_limit.factor),
        learn_from_shared=spec.policy.learn_from_shared,
    )


def _max_power_w(devices: Sequence[Device]) -> float | None:
    """Return the maximum power of all devices together; ``None`` if unknown for any."""
    known = [watts for device in devices if (watts := device.max_power_w) is not None]
    return sum(known) if known and len(known) == len(devices) else None


def next_recurrence(submission: Submission, trials: Sequence[Trial]) -> int:
    """Return the number of the next recurrence of the job.

    A history that was set aside starts again, but its run directories keep their numbers.
    """
    home, job = submission.home, submission.spec.name
    known = max((trial.recurrence for trial in trials), default=0)
    later = sorted((run for run in numbered_runs(home, job) if run[0] > known), reverse=True)
    begun = (n for n, name in later if has_begun(RunPaths(runs_directory(home, job) / name)))
    return next(begun, known) + 1


def decide(submission: Submission, problem: Problem, runs: Sequence[Run], attempt: int) -> Decision:
    """Return the policy's choice, or the user's own.

    The random generator is seeded with the job file's seed, recurrence and attempt: the same
    history gives the same choice.

    Raises:
        UsageError: If the user's choice is not among the candidates.
    """
    forced = submission.forced_batch_size
    if forced is None:
        rng = np.random.default_rng([submission.spec.policy.seed, problem.recurrence, attempt])
        return submission.policy.choose(problem, runs, rng)
    if forced not in problem.candidates:
        known = ", ".join(map(str, problem.candidates))
        raise UsageError(
            f"--batch-size {forced}: not among the candidates of the job file ({known}); "
            "choose one of them, or add it to batch_size.candidates"
        )
    bound = bound_of_proven(problem, runs)
    return Decision(forced, Stage.FORCED, submission.why_forced, bound=bound)


def _draft_trial(
    submission: Submission,
    decision: Decision,
    recurrence: int,
    attempt: int,
    power_limit_w: float | None,
) -> Trial:
    """Return the trial that carries out a decision."""
    spec, gpus = submission.spec, submission.gpus
    name = f"{spec.name}-{recurrence}-{attempt}"
    return Trial(
        trial=name,
        job=spec.name,
        recurrence=recurrence,
        attempt=attempt,
        global_batch_size=decision.global_batch_size,
        power_limit_w=power_limit_w,
        learning_rate=spec.learning_rate_for(decision.global_batch_size),
        world_size=submission.world_size,
        gpu_model=gpus[0].model if gpus else None,
        gpu_count=len(gpus),
        started_at=timestamp(),
        metric=spec.objective.metric,
        run_dir=str(runs_directory(submission.home, spec.name) / name),
        stage=decision.stage,
        why=decision.why,
        mode=spec.objective.mode,
        target=spec.objective.target,
        max_epochs=spec.objective.max_epochs,
        eta_knob=spec.objective.eta_knob,
        default_batch_size=spec.batch_size.default,
        host=submission.host,
    )


def _limit_in_force(submission: Submission) -> float | None:
    """Return the limit that all GPUs begin with, in watts per GPU; ``None`` if they have none."""
    if submission.spec.power_limit.watts is not None and submission.gpus:
        return submission.spec.power_limit.watts
    found_w = {gpu.read().power_limit_w for gpu in submission.gpus}
    return found_w.pop() if len(found_w) == 1 else None


def plan(submission: Submission) -> tuple[Trial, Command, Sequence[str]]:
    """Return the trial that a submit would dispatch now, its command, and notes. Writes nothing.

    Raises:
        ZeusrunError: As a submit would.
    """
    trials = submission.history.trials(submission.spec.name, NEWEST)
    choice = choose_next(submission, trials, None, 1)
    trial = choice.trial
    paths = RunPaths(Path(trial.run_dir))
    torchrun, environment = submission.torchrun, submission.environment
    command = build_command(
        submission.spec, trial, paths, torchrun, environment, placement=submission.placement
    )
    notes = () if choice.note is None else (choice.note,)
    return trial, command, (*notes, *choice.kept)
