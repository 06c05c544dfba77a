"""Chooses the next attempt of a recurrence, or says why there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.bandit.auto.policy import Auto, bound_of_proven
from zeusrun.bandit.differences import describe_kept
from zeusrun.bandit.eras import compare_training, continue_training, describe_eras
from zeusrun.bandit.power import first_lever
from zeusrun.bandit.problem import Observation
from zeusrun.bandit.registry import choose_control
from zeusrun.bandit.reinterpret import read_history
from zeusrun.bandit.stopping import bounded_choice, fit_bound
from zeusrun.bandit.tally import build_tally, likeliest_arm
from zeusrun.choice.attempts import why_no_other, why_not_continued
from zeusrun.choice.problem import (
    build_problem,
    find_speed_variant,
    fit_time_limit,
    next_recurrence,
)
from zeusrun.trial import Decision, Stage, Trial, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.problem import Problem
    from zeusrun.choice.problem import Chooser, Machine, Moment
    from zeusrun.jobfile.spec import JobSpec

_COMPARED_WITH = 50  # trials that a running one is compared with


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The next trial of a job, and what it was chosen from. Nothing of it is on disk yet."""

    trial: Trial  # a new one, or a preempted one that is continued
    problem: Problem  # what the policy was asked
    runs: tuple[Observation, ...]  # the history as it reads under the problem
    decision: Decision
    about_history: tuple[str, ...] = ()  # sentences: what reads otherwise, is missing, has changed
    limit_w: float | None = None  # of each GPU at the start, in watts; ``None`` without a limit
    note: str | None = None  # why no preempted trial is continued, what changed, or is left out
    earlier: tuple[Trial, ...] = ()  # the newest trials of the job, oldest first

    @property
    def too_large(self) -> Trial | None:
        """The comparable run that ran out of memory after the least growth, if any."""

        def likeness(each: Trial) -> tuple[object, ...]:
            return each.variant, each.micro_batch_size, each.hardware

        found = [
            then
            for then in self.earlier
            if then.status is TrialStatus.OOM
            and not then.forgotten
            and then.last_batch_size > then.global_batch_size
            and likeness(then) == likeness(self.trial)
        ]
        return min(found, key=_size_that_fit, default=None)

    @property
    def largest_that_fits(self) -> int | None:
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


def choose_trial(
    chooser: Chooser,
    machine: Machine,
    trials: Sequence[Trial],
    made: Sequence[Attempt],
    moment: Moment,
) -> Choice | NothingLeft:
    """Choose the next attempt of a recurrence.

    Args:
        chooser: Who chooses for which job.
        machine: What the job trains on.
        trials: The newest of the job, oldest first.
        made: The attempts of the recurrence so far; without any, continue a preempted trial, or
            begin the next recurrence.
        moment: What holds now.

    Raises:
        UsageError: If the user's own choice is no candidate.
    """
    spec, number = chooser.spec, next_recurrence(trials, moment.unrecorded)
    attempt, note = 1, None
    if made:
        number, attempt = made[-1].trial.recurrence, made[-1].trial.attempt + 1
    elif (preempted := moment.preempted) is not None:
        why = why_not_continued(chooser, machine, preempted, has_files=moment.has_files)
        if why is None:
            return _continue(chooser, machine, trials, preempted, moment)
        note = f"{preempted.trial} was preempted and is not continued: {why}"
    problem = build_problem(spec, machine, trials, number, moment.fingerprint)
    eras = compare_training(moment.fingerprint, trials)
    sentences = [
        *describe_kept(problem, trials),
        *_describe_unrecorded(spec.name, moment),
        *describe_eras(eras, moment.script),
    ]
    problem, runs = read_history(problem, trials)
    default = problem.default
    fitting = fit_time_limit(chooser, machine, moment, problem, trials)
    problem = fitting.problem
    if fitting.none_fits and fitting.note and not all(each.replaced for each in made):
        return NothingLeft(fitting.note)
    siblings = [each for each in trials if each.recurrence == number]
    decision = decide(chooser, problem, runs, attempt, siblings)
    trial = draft_trial(spec, problem, decision, attempt=attempt, machine=machine, moment=moment)
    trial = replace(trial, default_batch_size=default)
    note = ". ".join(filter(None, (note, fitting.note))) or None
    choice = Choice(
        trial=trial,
        problem=problem,
        runs=tuple(runs),
        decision=decision,
        about_history=tuple(sentences),
        limit_w=machine.power_limit_w,
        note=note,
        earlier=tuple(trials[-_COMPARED_WITH:]),
    )
    if not made or made[-1].replaced:
        return choice
    reason = why_no_other(spec, [each.trial for each in made], decision, runs, choice.earlier)
    return choice if reason is None else NothingLeft(reason)


def _continue(
    chooser: Chooser, machine: Machine, trials: Sequence[Trial], preempted: Trial, moment: Moment
) -> Choice:
    """Return the choice that continues a preempted trial."""
    spec = chooser.spec
    problem = build_problem(spec, machine, trials, preempted.recurrence, moment.fingerprint)
    sentences = [*describe_kept(problem, trials), *_describe_unrecorded(spec.name, moment)]
    problem, runs = read_history(problem, trials)
    siblings = [each for each in trials if each.recurrence == problem.recurrence]
    arm = preempted.global_batch_size
    trial = replace(
        preempted.resume(moment.now, machine.host, machine.allocation),
        micro_batch_size=problem.micro_batch_sizes.get(arm),
    )
    eras = compare_training(moment.fingerprint, trials)
    trial, note = continue_training(trial, moment.fingerprint, eras.ignored, moment.script)
    if trial.time_s is None:  # it was preempted before its training began
        trial = replace(trial, power_limit_w=machine.power_limit_w)
    # A speed check that it began with is over.
    stage = Stage.EXPLORE if trial.stage is Stage.SPEED_CHECK else trial.stage
    bound = None
    # A policy that would bound no run now, such as ``fixed``, does not bound this one either.
    now_bounded = decide(chooser, problem, runs, trial.attempt, siblings).bound is not None
    if now_bounded and stage is not Stage.CONTROL:
        bound = bound_of_proven(problem, runs)
    bound = None if bound is None else fit_bound(problem, runs, arm, bound)
    return Choice(
        trial=trial,
        problem=problem,
        runs=tuple(runs),
        decision=Decision(arm, stage, trial.why, bound=bound),
        about_history=tuple(sentences),
        limit_w=machine.power_limit_w,
        note=note,
        earlier=tuple(trials[-_COMPARED_WITH:]),
    )


def _size_that_fit(grown: Trial) -> int:
    """Return the largest batch size that fitted: the one chosen for the run, or a later one."""
    smaller = [size for _, size in grown.batch_sizes if size < grown.last_batch_size]
    return max(smaller, default=grown.global_batch_size)


def _describe_unrecorded(job: str, moment: Moment) -> list[str]:
    """Say, in a sentence, which begun runs the history lacks."""
    names = [name for _, name in moment.unrecorded]
    if not names:
        return []
    runs = names[0] if len(names) == 1 else f"{len(names)} runs, such as {names[0]},"
    command = f"zeusrun repair --restore {job}"
    return [f"it lacks {runs} whose run directory exists; `{command}` adds what is missing"]


def decide(
    chooser: Chooser,
    problem: Problem,
    runs: Sequence[Observation],
    attempt: int,
    made: Sequence[Trial] = (),
) -> Decision:
    """Return the user's own choice, the control run that is due, or the policy's choice.

    The same history gives the same choice: job file, recurrence and attempt seed the generator.

    Raises:
        UsageError: If the user's own choice is no candidate.
    """
    policy, forced = chooser.policy, chooser.forced
    if forced is not None:  # no other batch size may follow, so nothing bounds it
        forced.check(chooser.spec.batch_size.candidates)
        return Decision(forced.batch_size, Stage.FORCED, forced.why)
    control = choose_control(policy, problem, runs, made)
    if control is not None:
        return control

    def choose(problem: Problem, runs: Sequence[Observation]) -> Decision:
        rng = np.random.default_rng([chooser.spec.policy.seed, problem.recurrence, attempt])
        return policy.choose(problem, runs, rng)

    return bounded_choice(choose, problem, runs, made, moves_on=policy.name == Auto.name)


def decide_after_miss(
    chooser: Chooser,
    problem: Problem,
    runs: Sequence[Observation],
    first: Decision,
    epoch_cost_j: float | None,
) -> Decision | None:
    """Return the second attempt if the first one missed the target; ``None``: there is none.

    ``epoch_cost_j`` is what an epoch of the first attempt is expected to cost.
    """
    if chooser.spec.attempts == 1:
        return None
    missed = Observation(
        first.global_batch_size, problem.recurrence, TrialStatus.MISSED, first.stage
    )
    missed = missed._replace(epochs=problem.max_epochs, epoch_cost_j=epoch_cost_j)
    left = chooser.spec.attempts - 1
    problem = replace(problem, last_attempt=left == 1, attempts_left=left)
    decision = decide(chooser, problem, [*runs, missed], 2)
    return None if decision.global_batch_size == first.global_batch_size else decision


def draft_trial(
    spec: JobSpec,
    problem: Problem,
    decision: Decision,
    *,
    attempt: int,
    machine: Machine,
    moment: Moment,
    name: str | None = None,
) -> Trial:
    """Return the trial of a decision; ``name`` is its id, by default made of its numbers."""
    arm = decision.global_batch_size
    name = name or f"{spec.name}-{problem.recurrence}-{attempt}"
    return Trial(
        trial=name,
        job=spec.name,
        **problem.recorded,
        attempt=attempt,
        global_batch_size=arm,
        power_limit_w=machine.power_limit_w,
        learning_rate=spec.learning_rate_for(arm),
        **machine.hardware._asdict(),
        started_at=moment.now,
        run_dir=str(moment.runs / name),
        stage=decision.stage,
        why=decision.why,
        host=machine.host,
        hosts=machine.hosts,
        allocation=machine.allocation,
        variant=spec.variant,
        speed_variant=find_speed_variant(spec),
        micro_batch_size=problem.micro_batch_sizes.get(arm),
        uuid=moment.uuid,
        fingerprint=dict(moment.fingerprint),
    )


_NO_ANSWER = "the shared history does not respond"


def choose_offline(
    chooser: Chooser,
    machine: Machine,
    trials: Sequence[Trial],
    made: Sequence[Attempt],
    moment: Moment,
    *,
    name: str,
) -> Choice | NothingLeft:
    """Choose the cheapest batch size that is known here; ``trials`` are those of the local copy.

    The recurrence of the trial is a guess, and its id ``name`` has none: the server gives it one. A
    further attempt needs the server, because it belongs to a recurrence, so this one has no bound.
    """
    if made:
        return NothingLeft(f"there is no further attempt, because {_NO_ANSWER}")
    number = next_recurrence(trials, moment.unrecorded)
    problem, runs = read_history(build_problem(chooser.spec, machine, trials, number), trials)
    if chooser.forced is None:
        decision = _cheapest(problem, runs)
    else:
        decision = decide(chooser, problem, runs, 1)
    trial = draft_trial(
        chooser.spec, problem, decision, attempt=1, machine=machine, moment=moment, name=name
    )
    limit_w = machine.power_limit_w
    return Choice(
        trial=trial,
        problem=problem,
        runs=tuple(runs),
        decision=decision,
        limit_w=limit_w,
        earlier=tuple(trials),
    )


def _cheapest(problem: Problem, runs: Sequence[Observation]) -> Decision:
    tally, stage = build_tally(problem, runs), Stage.EXPLOIT
    known = {arm: costs for arm, costs in tally.costs_j.items() if costs and arm in tally.fitting}
    if known:
        arm = min(known, key=lambda arm: (sum(known[arm]) / len(known[arm]), arm))
        why = f"{arm} is the cheapest batch size that is known here"
    elif (proven := likeliest_arm(tally)) is not None:
        arm, why = proven[0], f"no cost is known here: {proven[1]}"
    else:
        fits = problem.default in tally.fitting or not tally.fitting
        arm, stage = problem.default if fits else tally.fitting[-1], Stage.EXPLORE
        what = "the default" if fits else "the largest that may run"
        why = f"no cost is known here: {arm} is {what}"
    return Decision(arm, stage, f"{_NO_ANSWER}, and {why}", first_lever(problem, runs, arm))
