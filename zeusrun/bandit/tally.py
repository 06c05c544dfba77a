"""A job's runs sorted by batch size, for policies that treat each batch size by itself."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.bandit.auto.drift import without_edited
from zeusrun.bandit.problem import OUTDONE, RUN_SD, ArmBelief, timed_runs, usual_speed
from zeusrun.trial import Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from zeusrun.bandit.problem import Observation, Problem, Runs, RunsByArm

# You et al. do not treat memory. If an arm has trained before, another process on the GPU may have
# caused one OOM: it takes two to rule the arm out.
_MAX_CRASHES = 2
CRASH_LIMIT = 2  # crashes of the script after which the batch size may be the cause

_RESULTS = frozenset({TrialStatus.REACHED, TrialStatus.MISSED, TrialStatus.STOPPED})
_TRAINED = _RESULTS | {TrialStatus.CANCELLED}
_WHOLE = frozenset({TrialStatus.REACHED, TrialStatus.MISSED})


@dataclass(frozen=True)
class CostBelief:
    """A Gaussian belief of the mean cost of an arm; ``sd_j`` is that of one run's cost."""

    runs: int
    mean_j: float
    sd_j: float

    @property
    def sd_of_mean_j(self) -> float:
        """Standard deviation of the belief."""
        return float(self.sd_j / self.runs**0.5)

    @property
    def range_j(self) -> tuple[float, float]:
        """5th and 95th percentile of the next run's cost; never negative."""
        spread = 1.645 * self.sd_j * (1 + 1 / self.runs) ** 0.5
        return max(0.0, self.mean_j - spread), self.mean_j + spread


def believe(costs_j: Sequence[float]) -> CostBelief:
    """Fold an arm's costs, at least one, into a belief with a flat prior on the mean.

    The mean cost is Gaussian around the sample mean with variance ``sd^2 / n``, where ``sd^2`` is
    the population variance of the costs: You et al. (NSDI 2023) and their published code. A single
    cost has no variance; its ``sd`` is ``RUN_SD`` of it.
    """
    runs = len(costs_j)
    mean = sum(costs_j) / runs
    if runs == 1:
        return CostBelief(1, mean, RUN_SD * mean)
    return CostBelief(runs, mean, math.hypot(*(cost - mean for cost in costs_j)) / runs**0.5)


@dataclass(frozen=True)
class Tally:
    """Runs by arm, in order of start."""

    results: RunsByArm  # that reached the target or failed to
    costs_j: Mapping[int, Sequence[float]]  # known ones of ``REACHED``, the last ``Problem.window``
    out_of_memory: Mapping[int, int]  # how often
    fitting: tuple[int, ...]  # candidates that memory and crashes do not rule out, ascending
    crashed: Mapping[int, str]  # arms that crashes of the script rule out, and why
    not_now: frozenset[int]  # failed in an earlier attempt of the recurrence being decided
    exploring: bool  # whether another recurrence has an exploration in flight


def build_tally(problem: Problem, runs: Runs) -> Tally:
    """Sort a job's runs, oldest first; those of another machine do not count.

    Nor do those of an edited training that probably takes another number of epochs. A run that
    shared its devices counts by its epochs, at the cost that they have without the others.
    """
    results: defaultdict[int, list[Observation]] = defaultdict(list)
    costs_j: defaultdict[int, list[float]] = defaultdict(list)
    out_of_memory: Counter[int] = Counter()
    exploring = False
    counting = without_edited(runs)
    timed = timed_runs(counting)
    for run in counting:
        arm, status = run.arm, run.status
        if not (run.local or run.disturbed):
            continue
        if status is TrialStatus.OOM:  # also of a batch size between candidates: larger ones fail
            out_of_memory[arm] += 1
        elif arm not in problem.candidates:
            continue
        elif status in _RESULTS:
            results[arm].append(run)
            if run.cost_j is not None:
                costs_j[arm].append(run.cost_j)
            elif run.disturbed and status is TrialStatus.REACHED and run.epochs and arm in timed:
                costs_j[arm].append(run.epochs * usual_speed(timed[arm]))
        elif status is TrialStatus.DISPATCHED and run.recurrence != problem.recurrence:
            exploring = exploring or run.stage is Stage.EXPLORE
    window = problem.window or 0  # [-0:] is everything
    crashed = rule_out_crashed(runs)
    return Tally(
        results=dict(results),
        costs_j={b: costs[-window:] for b, costs in costs_j.items()},
        out_of_memory=out_of_memory,
        fitting=fitting(problem.candidates, out_of_memory, runs, crashed),
        crashed=crashed,
        not_now=failed_now(problem, runs, OUTDONE),
        exploring=exploring,
    )


def failed_now(
    problem: Problem, runs: Iterable[Observation], statuses: frozenset[TrialStatus]
) -> frozenset[int]:
    """Return arms with such a status in the recurrence, and those larger than one with an OOM."""
    ended = [run for run in runs if run.recurrence == problem.recurrence and run.status in statuses]
    too_large = min((run.arm for run in ended if run.status is TrialStatus.OOM), default=math.inf)
    larger = {arm for arm in problem.candidates if arm > too_large}
    return frozenset({run.arm for run in ended} | larger)


def likeliest_arm(tally: Tally) -> tuple[int, str] | None:
    """Return the arm that reaches the target most reliably, and why; ``None`` without a success.

    It has the highest ``(reached + 1) / (runs + 2)`` of those that have not failed in this
    recurrence; of equals, the one with the cheapest run.
    """
    runs = {arm: tally.results.get(arm, ()) for arm in tally.fitting if arm not in tally.not_now}
    statuses = {arm: [run.status for run in of_arm] for arm, of_arm in runs.items()}
    reached = {arm: of_arm.count(TrialStatus.REACHED) for arm, of_arm in statuses.items()}
    options = [arm for arm, times in reached.items() if times]
    if not options:
        return None

    def rank(arm: int) -> tuple[float, float]:
        share = (reached[arm] + 1) / (len(runs[arm]) + 2)
        return -share, min(tally.costs_j.get(arm, ()), default=math.inf)

    arm = min(options, key=rank)
    times = f"{reached[arm]} of {len(runs[arm])} runs"
    return arm, f"{arm} has reached the target in {times}"


def fitting(
    candidates: Sequence[int],
    out_of_memory: Mapping[int, int],
    runs: Runs,
    crashed: Mapping[int, str],
) -> tuple[int, ...]:
    """Return the candidates below the first that memory rules out, without the ``crashed`` ones.

    An arm that has trained for an epoch fits, and so do all smaller ones.
    """
    here = (run for run in runs if run.local or run.disturbed)
    trained = (run.arm for run in here if run.epochs and run.status in _TRAINED)
    proven = max(trained, default=0)
    crashes = {arm: _MAX_CRASHES if arm <= proven else 1 for arm in out_of_memory}
    too_large = [arm for arm, times in out_of_memory.items() if times >= crashes[arm]]
    small = tuple(arm for arm in candidates if not too_large or arm < min(too_large))
    return tuple(arm for arm in small if arm not in crashed) or small


def count_crashes(runs: Runs) -> Counter[int]:
    """Count the recurrences in which today's training crashed in each arm.

    If it crashed in a proven arm, too, the batch size is not the cause, and the recurrence does not
    count.
    """
    failed = [run for run in runs if run.status is TrialStatus.FAILED and run.differs is None]
    crashed = {(run.recurrence, run.arm) for run in failed}
    proven = _find_whole(runs) if failed else set()
    of_the_job = {recurrence for recurrence, arm in crashed if arm in proven}
    return Counter(arm for recurrence, arm in crashed if recurrence not in of_the_job)


def rule_out_crashed(runs: Runs) -> dict[int, str]:
    """Return the arms that crashes of today's training rule out, and why.

    An arm is out if it crashed in ``CRASH_LIMIT`` recurrences, and another one has trained. If the
    newest runs are as many crashes of one arm with one cause, the next run has an arm that has not
    crashed: it shows whether the batch size is the cause, unless another arm has shown that cause
    already. Which causes depend on it cannot be told from their text, and one more crash costs
    little. An arm that today's training has trained to its end is never out: then something else is
    the cause, such as a full disk.
    """
    crashes = count_crashes(runs)
    if not crashes:
        return {}
    today = [r for r in runs if r.differs is None and r.status is not TrialStatus.DISPATCHED]
    trained = {run.arm for run in today if run.epochs and run.status in _TRAINED}
    out = {
        arm: f"its script crashed in {times} recurrences, and not with others"
        for arm, times in crashes.items()
        if times >= CRASH_LIMIT and trained - {arm}
    }
    newest = [(run.arm, run.cause) for run in today[-CRASH_LIMIT:]]
    arm, cause = newest[-1]
    alike = {run.arm for run in today if run.cause == cause}
    if cause is not None and newest == [(arm, cause)] * CRASH_LIMIT and alike == {arm}:
        others = dict.fromkeys(crashes, "its script crashed")
        out = others | {arm: f"its script crashed {CRASH_LIMIT} times with the same error"} | out
    return {arm: why for arm, why in out.items() if arm not in _find_whole(runs)}


def _find_whole(runs: Runs) -> set[int]:
    """Return the arms that today's training has trained to its end."""
    return {run.arm for run in runs if run.status in _WHOLE and run.differs is None}


def explain_arms(
    tally: Tally, chances: Mapping[int, float], verdicts: Mapping[int, str]
) -> list[ArmBelief]:
    """Return what each candidate's own runs show.

    ``chances`` are the probabilities of being chosen next; ``verdicts`` have every candidate.
    """
    beliefs = []
    for arm, verdict in verdicts.items():
        results, costs_j = tally.results.get(arm, ()), tally.costs_j.get(arm, ())
        cost = believe(costs_j) if costs_j else None
        trials = len(results) + tally.out_of_memory.get(arm, 0)
        reached = [run for run in results if run.status is TrialStatus.REACHED]
        belief = ArmBelief(
            global_batch_size=arm,
            trials=trials,
            reached=len(reached),
            epochs=_mean([run.epochs for run in reached]),
            epoch_cost_j=_mean([run.epoch_cost_j for run in results]),
            cost_j=cost.mean_j if cost else None,
            cost_range_j=cost.range_j if cost else None,
            failure_chance=1 - len(reached) / trials if trials else None,
            chance=chances.get(arm, 0.0),
            verdict=verdict,
        )
        beliefs.append(belief)
    return beliefs


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
