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
from zeusrun.cost import energy_text
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
    """A decision, and what it was made from.

    Attributes:
        problem: What was asked, completed by what only the history knows.
        runs: The history as it reads under the problem.
        decision: The answer.
        kept: Sentences on past trials that are read otherwise than they ended.
        limit_w: The power limit that all GPUs begin with, in watts per GPU; ``None`` if they have
            none. A preempted trial may have had another one before.
    """

    problem: Problem
    runs: tuple[Run, ...]
    decision: Decision
    kept: tuple[str, ...]
    limit_w: float | None = None


def build_problem(
    submission: Submission, trials: Sequence[Trial], recurrence: int | None = None
) -> Problem:
    """Return what the policy is asked, by default of the next recurrence of the job."""
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
    """Return the most that all devices together may draw; ``None`` if unknown for any."""
    known = [watts for device in devices if (watts := device.max_power_w) is not None]
    return sum(known) if known and len(known) == len(devices) else None


def next_recurrence(submission: Submission, trials: Sequence[Trial]) -> int:
    """Return the number of the next recurrence of the job.

    A history that was set aside starts again, but the run directories of what it knew keep their
    numbers.
    """
    home, job = submission.home, submission.spec.name
    known = max((trial.recurrence for trial in trials), default=0)
    later = sorted((run for run in numbered_runs(home, job) if run[0] > known), reverse=True)
    begun = (n for n, name in later if has_begun(RunPaths(runs_directory(home, job) / name)))
    return next(begun, known) + 1


def decide(
    submission: Submission, problem: Problem, trials: Sequence[Trial], attempt: int
) -> Choice:
    """Return the policy's choice, or the user's own.

    The random generator is seeded with the job file's seed, recurrence and attempt: the same
    history gives the same choice.

    Raises:
        UsageError: If the user's choice is not among the candidates.
    """
    forced = submission.forced_batch_size
    if forced is not None and forced not in problem.candidates:
        known = ", ".join(map(str, problem.candidates))
        raise UsageError(
            f"--batch-size {forced}: not among the candidates of the job file ({known}); "
            "choose one of them, or add it to batch_size.candidates"
        )
    sentences = tuple(describe_kept(problem, trials))
    problem, runs = read_history(problem, trials)
    if forced is None:
        rng = np.random.default_rng([submission.spec.policy.seed, problem.recurrence, attempt])
        decision = submission.policy.choose(problem, runs, rng)
    else:
        bound = bound_of_proven(problem, runs)
        decision = Decision(forced, Stage.FORCED, submission.why_forced, bound=bound)
    return Choice(problem, tuple(runs), decision, sentences)


@dataclass(frozen=True)
class Next:
    """The next trial of a job, before anything of it is written.

    Attributes:
        trial: New, or one that was preempted and goes on.
        choice: What it carries out.
        note: On a preempted trial that it does not go on with; ``None`` if there is none.
    """

    trial: Trial
    choice: Choice
    note: str | None


def choose_next(
    submission: Submission, trials: Sequence[Trial], recurrence: int | None, attempt: int
) -> Next:
    """Choose the next trial.

    Args:
        submission: The job and all it needs.
        trials: The newest of the job, oldest first.
        recurrence: Which recurrence it is an attempt of; ``None`` goes on with the trial that was
            preempted, else begins the next one.
        attempt: Its number within the recurrence, from 1.

    Raises:
        UsageError: If the user's own choice is not among the candidates.
    """
    preempted = find_preempted(trials) if recurrence is None else None
    note = None if preempted is None else _why_not(submission, preempted)
    if preempted is not None and note is None:
        trial = preempted.resume(timestamp())
        choice = _choose_again(submission, trials, trial)
        if trial.time_s is None:  # it was preempted before its training began
            trial = replace(trial, power_limit_w=choice.limit_w)
        return Next(trial, choice, None)
    problem = build_problem(submission, trials, recurrence)
    choice = decide(submission, problem, trials, attempt)
    trial = draft_trial(submission, choice.decision, problem.recurrence, attempt)
    return Next(trial, replace(choice, limit_w=trial.power_limit_w), note)


def _why_not(submission: Submission, preempted: Trial) -> str | None:
    paths = find_run(submission.home, preempted)
    has_files = paths is not None and paths.job_copy.is_file()
    why = why_not_continued(submission, preempted, has_files=has_files)
    return None if why is None else f"{preempted.trial} was preempted and is not continued: {why}"


def _choose_again(submission: Submission, trials: Sequence[Trial], trial: Trial) -> Choice:
    """Return the choice that a preempted trial carries out when it goes on.

    Its batch size is not asked for again. What it may cost is what the job file allows any trial;
    the look that it may have begun with is over.
    """
    problem = build_problem(submission, trials, trial.recurrence)
    sentences = tuple(describe_kept(problem, trials))
    problem, runs = read_history(problem, trials)
    stage = Stage.EXPLORE if trial.stage is Stage.LOOK else trial.stage
    bound = bound_of_proven(problem, runs)
    decision = Decision(trial.global_batch_size, stage, trial.why, bound=bound)
    return Choice(problem, tuple(runs), decision, sentences, _limit_in_force(submission))


def decide_again(submission: Submission, choice: Choice, looked: Run, attempt: int) -> Decision:
    """Return what the policy makes of a batch size whose speed it has looked at.

    Args:
        submission: The job and all it needs.
        choice: The one that the trial carries out.
        looked: The trial, as if cut short now.
        attempt: Its number.
    """
    runs, rng = [*choice.runs, looked], _rng_after_look(submission, choice, attempt)
    return submission.policy.choose(choice.problem, runs, rng)


def why_left(
    submission: Submission, choice: Choice, looked: Run, again: Decision, attempt: int
) -> str:
    """Say what a look has shown of a batch size, and what is run instead.

    Args:
        submission: The job and all it needs.
        choice: The one that the trial carries out.
        looked: The trial, as if cut short now.
        again: What the policy made of it.
        attempt: Number of the trial.
    """
    rng = _rng_after_look(submission, choice, attempt)
    beliefs = submission.policy.explain(choice.problem, [*choice.runs, looked], rng)
    belief = next(each for each in beliefs if each.global_batch_size == looked.arm)
    speed_j = belief.epoch_cost_j
    seen = "" if speed_j is None else f"{energy_text(speed_j)} an epoch; "
    follows = f"{again.global_batch_size} follows"
    return f"only its speed was looked at: {seen}{belief.verdict}; {follows}"


def _rng_after_look(submission: Submission, choice: Choice, attempt: int) -> np.random.Generator:
    seed = [submission.spec.policy.seed, choice.problem.recurrence, attempt, 1]
    return np.random.default_rng(seed)


def draft_trial(submission: Submission, decision: Decision, recurrence: int, attempt: int) -> Trial:
    """Return the trial that carries out a decision."""
    spec, gpus = submission.spec, submission.gpus
    name = f"{spec.name}-{recurrence}-{attempt}"
    return Trial(
        trial=name,
        job=spec.name,
        recurrence=recurrence,
        attempt=attempt,
        global_batch_size=decision.global_batch_size,
        power_limit_w=_limit_in_force(submission),
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
    )


def _limit_in_force(submission: Submission) -> float | None:
    """Return the limit that all GPUs begin with, in watts per GPU; ``None`` if they have none."""
    if submission.spec.power_limit.watts is not None and submission.gpus:
        return submission.spec.power_limit.watts
    found_w = {gpu.read().power_limit_w for gpu in submission.gpus}
    return found_w.pop() if len(found_w) == 1 else None


def plan(submission: Submission) -> tuple[Trial, Command, Sequence[str]]:
    """Return the trial that a submit would dispatch now, its command, and what it says of the past.

    Nothing is written.

    Raises:
        ZeusrunError: As a submit would.
    """
    trials = submission.history.trials(submission.spec.name, NEWEST)
    following = choose_next(submission, trials, None, 1)
    trial = following.trial
    paths = RunPaths(Path(trial.run_dir))
    torchrun, environment = submission.torchrun, submission.environment
    command = build_command(submission.spec, trial, paths, torchrun, environment)
    notes = () if following.note is None else (following.note,)
    return trial, command, (*notes, *following.choice.kept)
