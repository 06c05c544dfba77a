"""What a trial is chosen from besides the history, and what its policy is asked.

The machine and the moment are measured and read beforehand.

"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.bandit import stopping
from zeusrun.bandit.auto.evidence import gather
from zeusrun.bandit.differences import find_ignored, find_largest, find_own_size
from zeusrun.bandit.problem import PowerObjective, Problem
from zeusrun.bandit.proof import is_resized, prove, same_learning
from zeusrun.bandit.reinterpret import read_trials
from zeusrun.errors import UsageError
from zeusrun.jobfile.sections import split_batch
from zeusrun.reasons import ReasonCode
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from zeusrun.bandit.registry import Policy
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.lever import Lever
    from zeusrun.trial import Hardware, HostShare, Trial


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The devices that a job trains on. ``None`` is unknown."""

    host: str | None = None
    allocation: str | None = None  # see ``Trial``
    hardware: Hardware
    hosts: tuple[HostShare, ...] = ()  # if they are several
    energy_measured: bool | None = None  # ``False``: a model estimates it; ``None``: there is none
    max_power_w: float | None = None  # summed over the devices
    levers: tuple[Lever, ...] = ()  # to choose from, ascending; empty: nothing may be set
    power_limit_w: float | None = None  # in force on each GPU; ``None`` without a common one
    # Until the allocation ends, less what a graceful stop takes; ``None``: there is no limit.
    time_left_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What holds at the moment of a choice: time, id, and what the files of the job show."""

    now: str  # RFC 3339
    uuid: str  # of a new trial
    runs: Path  # contains the run directories of the job
    fingerprint: Mapping[str, str]  # of the training as it would start now
    script: str = "the script"  # what people call its part ``script``
    unrecorded: tuple[tuple[int, str], ...] = ()  # begun runs newer than the history, newest first
    preempted: Trial | None = None  # the oldest one that this machine could continue
    has_files: bool = False  # whether the files of that are here
    resumes: bool | None = None  # whether earlier runs saved a checkpoint; ``None``: not known


@dataclass(frozen=True)
class Forced:
    """The user's own choice."""

    batch_size: int
    why: str  # a sentence

    def check(self, candidates: Sequence[int]) -> None:
        """Raise ``UsageError`` if the batch size is no candidate."""
        if self.batch_size not in candidates:
            known = ", ".join(map(str, candidates))
            raise UsageError(
                f"--batch-size {self.batch_size}: not among the candidates of the job file "
                f"({known}); choose one of them, or add it to batch_size.candidates"
            )


@dataclass(frozen=True)
class Chooser:
    """Who chooses for a job: the user, where the user gave a choice, else the policy."""

    spec: JobSpec
    policy: Policy
    forced: Forced | None = None


def find_speed_variant(spec: JobSpec) -> str | None:
    """Return what else than the batch size changes the speed, as ``Trial.speed_variant``."""
    return next(filter(None, (part.speed_variant for part in spec.parts.values())), None)


def build_problem(
    spec: JobSpec,
    machine: Machine,
    trials: Sequence[Trial],
    recurrence: int,
    fingerprint: Mapping[str, str] | None = None,
) -> Problem:
    """Return the policy's problem for the next attempt of a recurrence.

    Args:
        spec: The job.
        machine: What it would train on.
        trials: The newest of the job, oldest first.
        recurrence: The number; its trials are the attempts that were made.
        fingerprint: Of the training as it would start now.
    """
    made = [trial for trial in trials if trial.recurrence == recurrence]
    left = stopping.count_attempts_left(made, spec.attempts)
    candidates, default = spec.batch_size.candidates, spec.batch_size.default
    sizes = {*candidates, *(trial.global_batch_size for trial in trials)}
    ignored = find_ignored(trials) is not None
    if ignored:  # no other one would arrive
        of_script = find_own_size(trials)
        default = of_script if of_script in candidates else default
        candidates = (default,)
    elif (largest := find_largest(trials)) is not None:  # an epoch has no more samples
        most = largest.observed_batch_size or 0
        candidates = tuple(size for size in candidates if size <= most or size == default)
    return Problem(
        candidates=candidates,
        default=default,
        ignored=ignored,
        metric=spec.objective.metric,
        mode=spec.objective.mode,
        target=spec.objective.target,
        max_epochs=spec.objective.max_epochs,
        eta_knob=spec.objective.eta_knob,
        cost_factor=spec.early_stop.cost_factor,
        window=spec.policy.window,
        control=spec.policy.control,
        recurrence=recurrence,
        last_attempt=left == 1 < spec.attempts,
        attempts_left=left,
        hardware=machine.hardware,
        energy_measured=machine.energy_measured,
        learning_rates={size: spec.learning_rate_for(size) for size in sorted(sizes)},
        micro_batch_sizes=_split_sizes(spec, machine, sizes),
        max_power_w=machine.max_power_w,
        levers=machine.levers,
        power_objective=PowerObjective(spec.power_limit.objective, spec.power_limit.factor),
        learn_from_shared=spec.policy.learn_from_shared,
        variant=spec.variant,
        speed_variant=find_speed_variant(spec),
        fingerprint=fingerprint,
    )


def next_recurrence(trials: Sequence[Trial], unrecorded: Sequence[tuple[int, str]] = ()) -> int:
    """Return the next number; begun runs that the history lacks, newest first, keep theirs."""
    return max((unrecorded[0][0] if unrecorded else 0, *(trial.recurrence for trial in trials))) + 1


def _split_sizes(spec: JobSpec, machine: Machine, sizes: Iterable[int]) -> dict[int, int]:
    """Return the micro-batch sizes of the batch sizes that the ranks accumulate."""
    largest, ranks = spec.batch_size.per_device_max, machine.hardware.world_size
    split = {size: split_batch(size // ranks, largest) for size in sizes if size % ranks == 0}
    return {size: micro for size, (micro, steps) in split.items() if steps > 1}


_NEWEST = 3  # runs of an arm that count: one may be slow by accident, and machines and data change
# Of the time that is left, from which a run that had not ended says that it is too short: a
# time limit leaves some seconds more or less each time, and the last step is before the end.
_NEARLY = 0.9


class Fitting(NamedTuple):
    """What the policy may choose from in the time that is left."""

    problem: Problem
    none_fits: bool = False  # then the fastest one is the only candidate
    note: str | None = None  # a sentence for people: what is left out, and why


def fit_time_limit(
    chooser: Chooser, machine: Machine, moment: Moment, problem: Problem, trials: Sequence[Trial]
) -> Fitting:
    """Return the problem without the candidates that cannot finish in ``machine.time_left_s``.

    Nothing is left out without a limit, if the script may resume, or if the user chose the batch
    size. A candidate is left out if it has comparable runs, and none of the newest three of them
    would fit. Runs that shared their devices, stalled or were interrupted do not count.

    Comparable is a run of today's training with today's hardware, metric, target and
    ``max_epochs``: a test with other values says nothing. A run that reached or missed the target
    shows what the arm takes. Any other shows that the time is too short if it trained for nearly as
    long: up to its last step, because a script that hung then only wasted the rest.

    The default stays a candidate: if it is left out, the fastest of the others stands in for it,
    and no control run is due. If all are left out, or the others ran out of memory, only the
    fastest one stays.
    """
    left_s, default = machine.time_left_s, problem.default
    if left_s is None or moment.resumes is not False or chooser.forced is not None:
        return Fitting(problem)
    seen: defaultdict[int, list[float]] = defaultdict(list)
    read = read_trials(problem, trials)[1]
    for trial, run in zip(trials, read, strict=True):
        took_s = _took_s(problem, trial, left_s)
        if run is not None and run.local and run.differs is None and took_s is not None:
            seen[trial.global_batch_size].append(took_s)
    least_s = {arm: min(of_arm[-_NEWEST:]) for arm, of_arm in seen.items()}
    left_out = tuple(arm for arm in problem.candidates if least_s.get(arm, 0.0) > left_s)
    if not left_out:
        return Fitting(problem)

    def rank(arm: int) -> tuple[float, float, int]:
        return least_s.get(arm, math.inf), abs(math.log(arm / default)), arm

    runs = [run for run in read if run is not None]
    able = gather(problem, runs).fitting or problem.candidates  # into memory
    remaining = tuple(arm for arm in able if arm not in left_out)
    fastest = min(remaining or able, key=rank)
    limit = f"the {left_s / 60:.0f} min that are left of the time limit"
    what = f"too slow to finish in {limit}, and left out: {', '.join(map(str, left_out))}"
    if not remaining:
        what = f"no batch size is likely to finish in {limit}"
    note = f"{what}; raise it, or let the script save checkpoints"
    problem = replace(
        problem,
        candidates=remaining or (fastest,),
        default=default if default in remaining else fastest,
        control=None if default in left_out else problem.control,
    )
    return Fitting(problem, not remaining, note)


def _took_s(problem: Problem, trial: Trial, left_s: float) -> float | None:
    """Return the seconds that a run shows that its arm takes.

    ``None``: it shows nothing; infinite: more than ``left_s``.
    """
    goals = [(each.target, each.max_epochs) for each in (trial, problem)]
    unlike = goals[0] != goals[1] or not same_learning(problem, trial)
    unheard = trial.reason_code is ReasonCode.NO_METRIC  # stopped early, perhaps as MISSED
    # Interruptions and preemptions add what was lost, a stall a pause; other ranks are not as fast.
    slowed = trial.interruptions or trial.preemptions or trial.stalls or is_resized(trial)
    if trial.time_s is None or unlike or unheard or slowed or prove(trial).learning is not None:
        return None
    trained_s = (trial.startup_s or 0.0) + trial.time_s
    if trial.status in {TrialStatus.REACHED, TrialStatus.MISSED}:
        return trained_s + (trial.shutdown_s or 0.0)
    return math.inf if trained_s >= _NEARLY * left_s else None
