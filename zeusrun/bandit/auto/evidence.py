"""What the runs of a job say of each arm, sorted out once for all that ``auto`` decides."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.bandit.auto.drift import first_valid
from zeusrun.bandit.spread import Spread
from zeusrun.bandit.tally import fitting, trained_arms
from zeusrun.trial import Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.bandit.observation import Run
    from zeusrun.bandit.problem import Problem

FAILED = frozenset({TrialStatus.MISSED, TrialStatus.STOPPED})
CRASH_LIMIT = 2  # recurrences in which a script crashed with a batch size and not with another
PROVEN = frozenset({Stage.EXPLOIT, Stage.RETRY})  # run as the best known, not to try them
SPEED_RUNS = 3  # newest ones that a speed is averaged over: machines change, too


@dataclass(frozen=True)
class Evidence:
    """Runs by arm, oldest first.

    Attributes:
        results: Runs that reached the target or failed to, since the job last moved, those that
            reached it first.
        reached: Those among them that reached it; arms without one are absent.
        cut: Runs cut short with a learning curve, since then.
        epoch_cost_j: Measured cost per epoch; arms without one are absent.
        power_w: Watts drawn at the known arm nearest to the default; ``None`` if unknown.
        run_sd: Standard deviation of one run's log epochs.
        fitting: Candidates that neither memory nor crashes of the script rule out.
        crashes: In how many recurrences the script crashed in each arm, and not also in one that
            has reached the target: then the batch size is not to blame.
        crashed_runs: How often the script crashed in each arm, whatever is to blame.
        crashed_now: Arms whose script crashed in the recurrence being decided.
        out_of_memory: How often each arm ran out of memory.
        in_flight: Arms of recurrences in flight.
        failed_now: Arms that failed in the recurrence being decided.
        missed_now: Those among them that missed the target or did not fit in memory: what was only
            stopped may reach it under a higher bound.
        proven_failed_now: Whether an arm that was run as the best known failed in the recurrence.
        lost_now_j: What these failures have cost, as far as that is known.
        moved: Finished runs that no longer count, because the job has moved since.
        successes: Epochs of each arm's newest run that reached the target, before the job moved or
            since; the newest of all is last.
    """

    results: Mapping[int, Sequence[Run]]
    reached: Mapping[int, Sequence[Run]]
    cut: Mapping[int, Sequence[Run]]
    epoch_cost_j: Mapping[int, float]
    power_w: float | None
    run_sd: float
    fitting: tuple[int, ...]
    crashes: Mapping[int, int]
    crashed_runs: Mapping[int, int]
    crashed_now: frozenset[int]
    out_of_memory: Mapping[int, int]
    in_flight: frozenset[int]
    failed_now: frozenset[int]
    missed_now: frozenset[int]
    proven_failed_now: bool
    lost_now_j: float
    moved: int
    successes: Mapping[int, int]

    @property
    def last_reached(self) -> int | None:
        """Arm of the newest run that reached the target; ``None`` if none ever has."""
        return next(reversed(tuple(self.successes)), None)


def gather(problem: Problem, runs: Sequence[Run]) -> Evidence:
    """Sort the runs of a job, oldest first."""
    told = [run for run in runs if run.status in FAILED or _has_reached(run)]
    cut = [run for run in runs if run.status is TrialStatus.CANCELLED and run.pace and run.epochs]
    fast: defaultdict[int, list[Run]] = defaultdict(list)
    for run in runs:
        if run.epoch_cost_j is not None:
            fast[run.arm].append(run)
    crashed = {(run.recurrence, run.arm) for run in runs if run.status is TrialStatus.FAILED}
    out_of_memory = Counter(run.arm for run in runs if run.status is TrialStatus.OOM)
    in_flight = {run.arm for run in runs if run.status is TrialStatus.DISPATCHED}
    lost = [
        run
        for run in runs
        if run.recurrence == problem.recurrence
        and (run.status in FAILED or run.status is TrialStatus.OOM)
    ]
    ever = {run.arm for run in told if _has_reached(run)}
    of_the_job = {recurrence for recurrence, arm in crashed if arm in ever}
    crashes = Counter(arm for recurrence, arm in crashed if recurrence not in of_the_job)
    successes: dict[int, int] = {}
    for run in told:
        if _has_reached(run):
            successes.pop(run.arm, None)
            successes[run.arm] = run.epochs or 1
    moved = first_valid(told)
    if moved:
        cut = [run for run in cut if run.recurrence >= told[moved].recurrence]
    told = _restarted(told[moved:]) if moved else told
    reached = _by_arm(problem, [run for run in told if run.status is TrialStatus.REACHED])
    failed = _by_arm(problem, [run for run in told if run.status in FAILED])
    results = {arm: [*reached.get(arm, ()), *failed.get(arm, ())] for arm in {**reached, **failed}}
    spread = Spread()
    for arm, own in reached.items():
        for run in own:
            spread.add(arm, math.log(run.epochs or 1))
    return Evidence(
        results=results,
        reached=reached,
        cut=_by_arm(problem, cut),
        epoch_cost_j={arm: _speed(own) for arm, own in fast.items()},
        power_w=_power(problem, fast),
        run_sd=spread.sd,
        fitting=tuple(
            arm
            for arm in fitting(problem.candidates, out_of_memory, trained_arms(runs))
            if arm in ever or crashes[arm] < CRASH_LIMIT or not ever
        ),
        crashes=crashes,
        crashed_runs=Counter(run.arm for run in runs if run.status is TrialStatus.FAILED),
        crashed_now=frozenset(arm for number, arm in crashed if number == problem.recurrence),
        out_of_memory=out_of_memory,
        in_flight=frozenset(in_flight),
        failed_now=_failed_now(problem, lost),
        missed_now=_failed_now(
            problem, [run for run in lost if run.status is not TrialStatus.STOPPED]
        ),
        proven_failed_now=any(run.status in FAILED and run.stage in PROVEN for run in lost),
        lost_now_j=sum((run.epochs or 1) * (run.epoch_cost_j or 0.0) for run in lost),
        moved=moved,
        successes=successes,
    )


def _failed_now(problem: Problem, lost: Sequence[Run]) -> frozenset[int]:
    """Return the arms that failed, and those above one that ran out of memory."""
    failed = {run.arm for run in lost}
    too_large = [run.arm for run in lost if run.status is TrialStatus.OOM]
    return frozenset(
        failed.union(arm for arm in problem.candidates if too_large and arm > min(too_large))
    )


def was_bounded(run: Run) -> bool:
    """Whether a run of what was known best was only stopped, so that its bound may be to blame."""
    return run.status is TrialStatus.STOPPED and run.stage in PROVEN


def _has_reached(run: Run) -> bool:
    return run.status is TrialStatus.REACHED and run.epochs is not None


def _restarted(told: Sequence[Run]) -> list[Run]:
    """Leave out what was stopped until something reached the target again.

    These trials were held to bounds of before the job moved: they say that it has, and no more.
    One that ran all of its epochs and missed the target is a failure of today.
    """
    again = next((run.recurrence for run in told if run.status is TrialStatus.REACHED), None)
    if again is None:
        return list(told)
    stopped = TrialStatus.STOPPED
    return [run for run in told if run.status is not stopped or run.recurrence > again]


def tell_window(problem: Problem, runs: Sequence[Run]) -> str | None:
    """Say how many runs are older than ``problem.window`` allows; ``None`` if none is."""
    if problem.window is None:
        return None
    kinds = Counter((run.arm, _kind(run)) for run in runs if _kind(run) is not None)
    old = sum(max(0, count - problem.window) for count in kinds.values())
    if not old:
        return None
    return (
        f"policy.window is {problem.window}: {old} older run{'' if old == 1 else 's'} of the same "
        "batch sizes left out"
    )


def _kind(run: Run) -> str | None:
    if run.status is TrialStatus.CANCELLED:
        return "cut short" if run.pace and run.epochs else None
    return "reached" if _has_reached(run) else "failed" if run.status in FAILED else None


def _by_arm(problem: Problem, runs: Sequence[Run]) -> dict[int, list[Run]]:
    arms: defaultdict[int, list[Run]] = defaultdict(list)
    for run in runs:
        arms[run.arm].append(run)
    window = problem.window or 0  # and [-0:] is everything
    return {arm: own[-window:] for arm, own in arms.items()}


def _speed(runs: Sequence[Run]) -> float:
    """Average the newest runs under the newest limit."""
    limit = runs[-1].power_limit_w
    costs = [run.epoch_cost_j for run in runs if run.power_limit_w == limit and run.epoch_cost_j]
    newest = costs[-SPEED_RUNS:]
    return sum(newest) / len(newest)


def _power(problem: Problem, fast: Mapping[int, Sequence[Run]]) -> float | None:
    known = {
        arm: max(run.power_w for run in own if run.power_w is not None)
        for arm, own in fast.items()
        if any(run.power_w is not None for run in own)
    }
    if not known:
        return None
    return known[min(known, key=lambda arm: (abs(math.log(arm / problem.default)), arm))]
