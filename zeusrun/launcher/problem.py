"""What a policy is asked about the next attempt of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.bandit import stopping
from zeusrun.bandit.differences import find_ignored, find_own_size
from zeusrun.bandit.problem import PowerObjective, Problem
from zeusrun.files.home import runs_directory
from zeusrun.jobfile.accumulation import split_batch
from zeusrun.launcher.rundir.layout import RunPaths, numbered_runs
from zeusrun.launcher.rundir.record import has_begun

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from zeusrun.launcher.context import Submission
    from zeusrun.trial import Trial


def build_problem(
    submission: Submission, trials: Sequence[Trial], recurrence: int | None = None
) -> Problem:
    """Return the policy's problem, by default for the next recurrence of the job."""
    spec, gpus = submission.spec, submission.gpus
    sources = [device.energy_source for device in submission.devices]
    most_w = [watts for device in submission.devices if (watts := device.max_power_w) is not None]
    made = [trial for trial in trials if trial.recurrence == recurrence]
    left = stopping.count_attempts_left(made, spec.attempts)
    sizes = {*spec.batch_size.candidates, *(trial.global_batch_size for trial in trials)}
    candidates, default = spec.batch_size.candidates, spec.batch_size.default
    ignored = find_ignored(trials) is not None
    if ignored:  # no other one would arrive
        own = find_own_size(trials)
        default = own if own in candidates else default
        candidates = (default,)
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
        recurrence=next_recurrence(submission, trials) if recurrence is None else recurrence,
        last_attempt=left == 1 < spec.attempts,
        attempts_left=left,
        world_size=submission.world_size,
        gpu_model=gpus[0].model if gpus else None,
        gpu_count=len(gpus),
        energy_measured=all(source.measured for source in sources) if sources else None,
        learning_rates={size: spec.learning_rate_for(size) for size in sorted(sizes)},
        micro_batch_sizes=_micro_batch_sizes(submission, sizes),
        max_power_w=sum(most_w) if most_w and len(most_w) == len(sources) else None,
        power_limits_w=submission.power_limits_w,
        power_objective=PowerObjective(spec.power_limit.objective, spec.power_limit.factor),
        learn_from_shared=spec.policy.learn_from_shared,
        variant=spec.variant,
    )


def next_recurrence(submission: Submission, trials: Sequence[Trial]) -> int:
    """Return the next number; run directories of a history that is gone keep theirs."""
    known = max((trial.recurrence for trial in trials), default=0)
    return next(_unknown_runs(submission, trials), (known, ""))[0] + 1


def _unknown_runs(submission: Submission, trials: Sequence[Trial]) -> Iterator[tuple[int, str]]:
    """Yield the begun runs that are newer than the history knows, the newest first."""
    home, job = submission.home, submission.spec.name
    known = max((trial.recurrence for trial in trials), default=0)
    runs = [(number or 0, name) for number, name in numbered_runs(home, job)]
    for run in sorted((run for run in runs if run[0] > known), reverse=True):
        if has_begun(RunPaths(runs_directory(home, job) / run[1])):
            yield run


def describe_unknown(submission: Submission, trials: Sequence[Trial]) -> list[str]:
    """Say, in a sentence, which begun runs the history lacks."""
    unknown = [name for _, name in _unknown_runs(submission, trials)]
    if not unknown:
        return []
    runs = unknown[0] if len(unknown) == 1 else f"{len(unknown)} runs, such as {unknown[0]},"
    command = f"zeusrun repair --restore {submission.spec.name}"
    return [f"it lacks {runs} whose run directory exists; `{command}` adds what is missing"]


def common_limit_w(submission: Submission) -> float | None:
    """Return the power limit of each GPU at the start; ``None`` without a common one."""
    fixed_w = submission.spec.power_limit.watts
    limits_w = {fixed_w or gpu.read().power_limit_w for gpu in submission.gpus}
    return limits_w.pop() if len(limits_w) == 1 else None


def _micro_batch_sizes(submission: Submission, sizes: Iterable[int]) -> dict[int, int]:
    """Return the micro-batch sizes of the batch sizes that the ranks accumulate."""
    most, ranks = submission.spec.batch_size.per_device_max, submission.world_size
    split = {size: split_batch(size // ranks, most) for size in sizes if size % ranks == 0}
    return {size: micro for size, (micro, steps) in split.items() if steps > 1}
