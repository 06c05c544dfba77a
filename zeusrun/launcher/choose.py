"""Chooses the next attempt of a recurrence, or says why there is none. Writes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np

from zeusrun.bandit import stopping
from zeusrun.bandit.attempts import bounded_choice, fit_bound
from zeusrun.bandit.auto.policy import Auto, bound_of_proven
from zeusrun.bandit.control import choose_control
from zeusrun.bandit.differences import describe_kept
from zeusrun.bandit.eras import compare_training, continue_training, describe_eras
from zeusrun.bandit.observation import FAILED, Run
from zeusrun.bandit.proof import Doubt, prove
from zeusrun.bandit.reinterpret import read_history
from zeusrun.clock import timestamp
from zeusrun.errors import UsageError
from zeusrun.files.home import runs_directory
from zeusrun.history.base import NEWEST
from zeusrun.jobfile.fingerprint import take_fingerprint
from zeusrun.launcher.problem import build_problem, common_limit_w, describe_unknown
from zeusrun.launcher.recover import find_preempted, own_trials, why_not_continued
from zeusrun.launcher.rundir.failure import is_permanent
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.rundir.place import find_own
from zeusrun.trial import Decision, Stage, Trial, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.problem import Problem
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.processes.command import Command

_COMPARED_WITH = 50  # trials that a running one is compared with


@dataclass(frozen=True)
class Choice:
    """The next trial of a job, and what it was chosen from. Nothing of it is on disk yet."""

    trial: Trial  # a new one, or a preempted one that is continued
    problem: Problem  # what the policy was asked
    runs: tuple[Run, ...]  # the history as it reads under the problem
    decision: Decision
    kept: tuple[str, ...] = ()  # sentences on past trials that no longer count as they ended
    limit_w: float | None = None  # of each GPU at the start, in watts; ``None`` without a limit
    note: str | None = None  # why a preempted trial is not continued, or what changed meanwhile
    earlier: tuple[Trial, ...] = ()  # the newest trials of the job, oldest first

    @property
    def too_large(self) -> Trial | None:
        """The run that ran out of memory after the least growth of its batch size, if any."""
        return find_grown_too_large(self.trial, self.earlier)

    @property
    def most(self) -> int | None:
        """How far the batch size may grow to fit in memory; ``None``: as far as the job allows."""
        grown = self.too_large
        return None if grown is None else _size_that_fit(grown)


@dataclass(frozen=True)
class Attempt:
    """A recorded attempt; one that a speed check ``replaced`` does not count."""

    trial: Trial
    replaced: bool


@dataclass(frozen=True)
class NothingLeft:
    """Why the recurrence makes no further attempt: a sentence for people."""

    reason: str


def choose_attempt(
    submission: Submission, trials: Sequence[Trial], made: Sequence[Attempt]
) -> Choice | NothingLeft:
    """Choose the next attempt of a recurrence; ``made`` are its attempts so far.

    Without any, continue a preempted trial, or begin the next recurrence.
    """
    if not made:
        return choose_next(submission, trials, None, 1)
    *earlier, last = [each.trial for each in made]
    choice = choose_next(submission, trials, last.recurrence, last.attempt + 1)
    if made[-1].replaced:
        return choice
    reason = _why_no_other(submission.spec, [*earlier, last], choice)
    return choice if reason is None else NothingLeft(reason)


def _why_no_other(spec: JobSpec, made: Sequence[Trial], choice: Choice) -> str | None:
    """Return why no attempt follows those that were made; ``None`` if the chosen one does."""
    *earlier, last = made
    if last.cause is not None:
        if last.cause in {trial.cause for trial in earlier}:
            return f"two attempts failed with the same error, so there is no third: {last.reason}"
        same = choice.decision.global_batch_size == last.global_batch_size
        if is_permanent(last.reason_code, same_choice=same):
            return "there is no second attempt: the same error would occur"
    teaching = [trial for trial in made if trial.teaches]
    in_doubt = stopping.is_target_in_doubt(teaching, choice.runs)
    if in_doubt and not any(_met_target(spec, trial) for trial in choice.earlier):
        return _doubt_target(spec, made)
    return _nothing_left(spec, made) if stopping.is_repeat(choice.decision, made) else None


def _met_target(spec: JobSpec, trial: Trial) -> bool:
    """Whether a run shows that today's target can be met, even if not in how many epochs."""
    goal = (spec.objective.metric, spec.objective.mode, spec.objective.target)
    same = (trial.metric, trial.mode, trial.target) == goal
    disturbed = prove(trial).learning in {Doubt.RESTARTED, Doubt.CHANGED}
    return same and disturbed and trial.status is TrialStatus.REACHED


def _doubt_target(spec: JobSpec, made: Sequence[Trial]) -> str:
    objective = spec.objective
    best = ", ".join(
        f"{trial.best_metric:.4g} with batch size {trial.global_batch_size}"
        for trial in made
        if trial.status in FAILED and trial.best_metric is not None
    )
    goal = f"{objective.metric} {objective.target:g}"
    return (
        f"nothing has reached {goal} yet (best: {best or 'none'}). After two batch sizes have "
        f"missed it, zeusrun makes no other attempt (attempts is {spec.attempts}), because the "
        "target may be wrong. Correct objective.target or objective.max_epochs; otherwise the next "
        "submit continues from here"
    )


def _nothing_left(spec: JobSpec, made: Sequence[Trial]) -> str:
    values = [trial.best_metric for trial in made if trial.best_metric is not None]
    best = (min if spec.objective.mode == "min" else max)(values, default=None)
    seen = "" if best is None else f" (best {best:.4g})"
    goal = f"{spec.objective.metric} {spec.objective.target:g}{seen}"
    stopped = any(trial.status is TrialStatus.STOPPED for trial in made)
    cost_key = "early_stop.cost_factor (it was stopped for its cost), " if stopped else ""
    correct = f"correct objective.target, raise {cost_key}objective.max_epochs, or"
    if all(trial.status is TrialStatus.OOM for trial in made):
        sizes = ", ".join(str(trial.last_batch_size) for trial in made)
        return (
            f"no batch size is left that may fit in memory ({sizes} did not); add smaller "
            "batch_size.candidates, or free memory"
        )
    if spec.policy.name == "fixed":
        only = made[-1].global_batch_size
        return (
            f"{only} has not reached {goal}, and policy fixed tries no other batch size; "
            f"{correct} choose another policy.name"
        )
    return f"no other batch size is left to try for {goal}; {correct} add batch_size.candidates"


def choose_next(
    submission: Submission, trials: Sequence[Trial], recurrence: int | None, attempt: int
) -> Choice:
    """Choose the next trial of a job; ``trials`` are its newest, oldest first.

    Without a recurrence, continue the trial that was preempted, else begin the next recurrence.
    """
    history, home = submission.history, submission.home
    preempted = None
    if recurrence is None:
        preempted = find_preempted(own_trials(history, home, submission.host, trials))
    note = None
    if preempted is not None:
        paths = find_own(history, home, preempted)
        has_files = paths is not None and paths.job_copy.is_file()
        why = why_not_continued(submission, preempted, has_files=has_files)
        if why is not None:
            note = f"{preempted.trial} was preempted and is not continued: {why}"
            preempted = None
    number = recurrence if preempted is None else preempted.recurrence
    now = take_fingerprint(submission.spec)
    problem = replace(build_problem(submission, trials, number), fingerprint=now.parts)
    sentences = [*describe_kept(problem, trials), *describe_unknown(submission, trials)]
    problem, runs = read_history(problem, trials)
    limit_w = common_limit_w(submission)
    eras = compare_training(now.parts, trials)
    own = [each for each in trials if each.recurrence == problem.recurrence]
    if preempted is None:
        decision = decide(submission, problem, runs, attempt, own)
        trial = draft_trial(submission, problem, decision, attempt, limit_w, fingerprint=now.parts)
        sentences += describe_eras(eras, now.script)
    else:
        trial = preempted.resume(timestamp(), submission.host)
        micro = problem.micro_batch_sizes.get(trial.global_batch_size)
        trial = replace(trial, micro_batch_size=micro)
        trial, note = continue_training(trial, now.parts, eras.ignored, now.script)
        if trial.time_s is None:  # it was preempted before its training began
            trial = replace(trial, power_limit_w=limit_w)
        # A speed check that it began with is over.
        stage = Stage.EXPLORE if trial.stage is Stage.SPEED_CHECK else trial.stage
        arm, bound = trial.global_batch_size, None
        # A policy that would bound no run now, such as ``fixed``, bounds this one neither.
        now_bounded = decide(submission, problem, runs, trial.attempt, own).bound is not None
        if now_bounded and stage is not Stage.CONTROL:
            bound = bound_of_proven(problem, runs)
        bound = None if bound is None else fit_bound(problem, runs, arm, bound)
        decision = Decision(arm, stage, trial.why, bound=bound)
    earlier, kept = tuple(trials[-_COMPARED_WITH:]), tuple(sentences)
    return Choice(trial, problem, tuple(runs), decision, kept, limit_w, note, earlier)


def find_grown_too_large(trial: Trial, earlier: Sequence[Trial]) -> Trial | None:
    """Return the run like a trial that ran out of memory after the least growth."""

    def likeness(each: Trial) -> tuple[object, ...]:
        devices = (each.world_size, each.gpu_model, each.gpu_count)
        return each.variant, each.micro_batch_size, *devices

    found = [
        then
        for then in earlier
        if then.status is TrialStatus.OOM
        and not then.forgotten
        and then.last_batch_size > then.global_batch_size
        and likeness(then) == likeness(trial)
    ]
    return min(found, key=_size_that_fit, default=None)


def _size_that_fit(grown: Trial) -> int:
    """Return the largest batch size that fitted: the one chosen for the run, or a later one."""
    smaller = [size for _, size in grown.batch_sizes if size < grown.last_batch_size]
    return max(smaller, default=grown.global_batch_size)


def decide(
    submission: Submission,
    problem: Problem,
    runs: Sequence[Run],
    attempt: int,
    made: Sequence[Trial] = (),
) -> Decision:
    """Return the user's own choice, the control run that is due, or the policy's choice.

    The same history gives the same choice: job file, recurrence and attempt seed the generator.

    Raises:
        UsageError: If the user's own choice is no candidate.
    """
    forced = submission.forced_batch_size
    if forced is not None and forced not in problem.candidates:
        known = ", ".join(map(str, problem.candidates))
        raise UsageError(
            f"--batch-size {forced}: not among the candidates of the job file ({known}); "
            "choose one of them, or add it to batch_size.candidates"
        )
    if forced is not None:  # no other batch size may follow, so nothing bounds it
        return Decision(forced, Stage.FORCED, submission.why_forced)
    control = choose_control(submission.policy, problem, runs, made)
    if control is not None:
        return control

    def choose(problem: Problem, runs: Sequence[Run]) -> Decision:
        rng = np.random.default_rng([submission.spec.policy.seed, problem.recurrence, attempt])
        return submission.policy.choose(problem, runs, rng)

    moves_on = submission.policy.name == Auto.name
    return bounded_choice(choose, problem, runs, made, moves_on=moves_on)


def decide_after_miss(
    submission: Submission,
    problem: Problem,
    runs: Sequence[Run],
    first: Decision,
    epoch_cost_j: float | None,
) -> Decision | None:
    """Return the second attempt if the first one missed the target; ``None``: there is none.

    ``epoch_cost_j`` is what an epoch of the first attempt is expected to cost.
    """
    if submission.spec.attempts == 1:
        return None
    missed = Run(first.global_batch_size, problem.recurrence, TrialStatus.MISSED, first.stage)
    missed = missed._replace(epochs=problem.max_epochs, epoch_cost_j=epoch_cost_j)
    left = submission.spec.attempts - 1
    problem = replace(problem, last_attempt=left == 1, attempts_left=left)
    decision = decide(submission, problem, [*runs, missed], 2)
    return None if decision.global_batch_size == first.global_batch_size else decision


def draft_trial(
    submission: Submission,
    problem: Problem,
    decision: Decision,
    attempt: int,
    power_limit_w: float | None,
    *,
    fingerprint: dict[str, str],
) -> Trial:
    """Return the trial of a decision. Nothing of it is on disk."""
    spec, arm = submission.spec, decision.global_batch_size
    name = f"{spec.name}-{problem.recurrence}-{attempt}"
    return Trial(
        trial=name,
        job=spec.name,
        recurrence=problem.recurrence,
        attempt=attempt,
        global_batch_size=arm,
        power_limit_w=power_limit_w,
        learning_rate=spec.learning_rate_for(arm),
        world_size=submission.world_size,
        gpu_model=problem.gpu_model,
        gpu_count=problem.gpu_count,
        started_at=timestamp(),
        metric=problem.metric,
        run_dir=str(runs_directory(submission.home, spec.name) / name),
        stage=decision.stage,
        why=decision.why,
        mode=problem.mode,
        target=problem.target,
        max_epochs=problem.max_epochs,
        eta_knob=problem.eta_knob,
        default_batch_size=problem.default,
        host=submission.host,
        variant=spec.variant,
        micro_batch_size=problem.micro_batch_sizes.get(arm),
        uuid=uuid4().hex,
        fingerprint=fingerprint,
    )


def plan(submission: Submission) -> tuple[Trial, Command, Sequence[str]]:
    """Return the trial that a submit would make now, its command, and notes. Writes nothing."""
    trials = submission.history.trials(submission.spec.name, NEWEST)
    choice = choose_next(submission, trials, None, 1)
    trial = choice.trial
    notes = () if choice.note is None else (choice.note,)
    command = submission.command(trial, RunPaths(Path(trial.run_dir)), choice.most)
    return trial, command, (*notes, *choice.kept)
