"""How much the epochs of older runs still say: a job changes with its code and its data."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zeusrun.bandit.eras import name_part
from zeusrun.bandit.problem import FAILED, RUN_SD, RUN_SD_WEIGHT
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from zeusrun.bandit.problem import Array, Observation, Runs

# benchmarks/ablations.py prints what these constants are worth.
EDIT = 0.1  # chance that an edit changes how many epochs the training takes
UNANNOUNCED = 0.003  # the same between two runs without an edit: new data
SHIFT_SD = 0.5  # of the log of that change
ACCIDENT = 10.0  # one run makes a change at most so many times more likely: it may be an accident
_SURE = 50.0  # the largest log of a Bayes factor
_FARTHEST_SDS = 5.0  # more counts as this much
_BEFORE = (4, 16, 1_000_000)  # runs before a moment that those after it are compared with
CERTAIN = 0.85  # above this, a run counts fully
DOUBTED = 0.5  # below this, a run probably no longer counts
LEAST = 0.05  # a less likely one is left out


def describe_outdated(runs: int) -> str:
    """Return how many runs are from before the job changed, as the start of a clause."""
    return "1 earlier run no longer counts" if runs == 1 else f"{runs} earlier runs no longer count"


def is_settled(run: Observation) -> bool:
    """Whether a run reached the target or failed to."""
    return run.status in FAILED or (run.status is TrialStatus.REACHED and run.epochs is not None)


def is_cut(run: Observation) -> bool:
    """Whether a run was cut short with a learning curve."""
    return run.status is TrialStatus.CANCELLED and bool(run.pace) and bool(run.epochs)


def describe_edited(runs: Runs) -> list[str]:
    """Describe how much the epochs of runs of other trainings count, in a sentence for each."""
    chances: dict[str, list[float]] = {}
    for run, each in weigh_shown(runs):
        if run.differs is not None:
            chances.setdefault(run.differs, []).append(each.chance)
    return [
        f"{len(shares)} {'run' if len(shares) == 1 else 'runs'} differed in "
        f"{' and '.join(name_part(part.partition(':')[0]) for part in differs.split())}: "
        f"{100 * statistics.fmean(shares):.0f} % likely to need as many epochs as today"
        for differs, shares in chances.items()
    ]


def without_edited(runs: Runs) -> Runs:
    """Leave out runs of other trainings that probably needed another number of epochs."""
    if all(run.differs is None for run in runs):
        return runs
    out = {
        id(run)
        for run, each in weigh_shown(runs)
        if run.differs is not None and each.chance < DOUBTED
    }
    return [run for run in runs if id(run) not in out]


class Relevance(NamedTuple):
    """What the epochs of an older run say of a run today."""

    chance: float  # that nothing relevant has changed since
    log_shift: float  # expected of the log of its epochs, because something may have changed
    sure: bool  # whether it counts as a run today


def weigh_shown(runs: Runs) -> list[tuple[Observation, Relevance]]:
    """Return the runs that are settled or cut short, and what each of them still says."""
    shown = [run for run in runs if is_settled(run) or is_cut(run)]
    return list(zip(shown, weigh_runs(shown), strict=True))


def weigh_runs(runs: Runs) -> list[Relevance]:
    """Return what each run still says; ``runs`` are settled or cut short, oldest first.

    Runs of the same training (``Observation.differs``) are compared with each other: data may
    change between any two of them, rarely. Those of another training are compared with those of
    today's: every edit between them may have changed it. A change multiplies the epochs of all
    arms by one factor. Its Bayes factor has an unknown variance between runs, and is limited: a
    run may be an accident, so one or two never decide. Today's training may have no run yet.
    """
    if not runs:
        return []
    shown = _compare(runs)
    labels = [run.differs for run in runs]
    chances, shifts = np.ones(len(runs)), np.zeros(len(runs))

    def runs_of(training: str | None) -> NDArray[np.int_]:
        """Weigh the runs of a training among themselves, and return those that still count."""
        at = np.array([i for i, label in enumerate(labels) if label == training], dtype=int)
        chances[at], shifts[at] = _weigh_training(shown, at)
        valid: NDArray[np.int_] = at[chances[at] >= DOUBTED]
        return valid

    unedited = runs_of(None)
    edits = 0
    for i, label in reversed(list(enumerate(labels))):
        edits += label != (labels[i + 1] if i + 1 < len(labels) else None)
        if label is None or label in labels[i + 1 :]:
            continue
        change = shown.compare(*shown.total(runs_of(label)), *shown.total(unedited))
        as_before = (1 - EDIT) ** edits
        same = 1 / (1 + (1 - as_before) / as_before * np.exp(change.log_factor))
        theirs = np.array([each == label for each in labels])
        chances[theirs] *= same
        shifts[theirs] += (1 - same) * change.log_shift
    sure = chances >= CERTAIN
    return list(map(Relevance, chances.tolist(), shifts.tolist(), sure.tolist()))


class _Change(NamedTuple):
    """A change between two groups of runs, if there is one."""

    log_factor: Array  # log of the Bayes factor of a change
    log_shift: Array  # how much log epochs have then changed


class _Compared(NamedTuple):
    """How far the epochs of each run are from those of its arm; shapes ``(arms, runs)``."""

    counts: Array  # 1 where a run shows something of an arm, else 0
    sums: Array  # its standard deviations, else 0
    sd: float  # of one run's log epochs
    freedom: float  # of the standard deviation

    def total(self, at: NDArray[np.int_]) -> tuple[Array, Array]:
        """Return counts and sums of some runs, shape ``(arms,)``."""
        return self.counts[:, at].sum(1), self.sums[:, at].sum(1)

    def compare(self, counts: Array, sums: Array, later: Array, later_sums: Array) -> _Change:
        """Compare groups of runs by their totals, shapes ``(arms, ...)``; the result has the rest.

        See Kass and Raftery (Journal of the American Statistical Association, 1995) for Bayes
        factors. The change is common to all arms, with a Gaussian prior. The likeliest of several
        changes is limited by its number of runs, and the others by as much.
        """
        both = (counts > 0) & (later > 0)
        every = np.maximum(1.0, counts + later)
        precision = (counts * later / every).sum(0)
        change = ((counts * later_sums - later * sums) / every * both).sum(0)
        fewest = np.minimum((counts * both).sum(0), (later * both).sum(0))
        prior = (SHIFT_SD / self.sd) ** 2
        scale = 1 + prior * precision
        square = change**2 * prior / scale
        log_factor = np.atleast_1d(square / 2 - np.log(scale) / 2)
        likeliest = log_factor.argmax()
        # The variance between runs is an estimate: Student's instead of a Gaussian.
        fit = math.log1p(square.flat[likeliest] / self.freedom) * (self.freedom + 1) / 2
        limit = min(_SURE, fewest.flat[likeliest] * math.log(ACCIDENT))
        log_factor += min(limit, fit - math.log(scale.flat[likeliest]) / 2) - log_factor.max()
        return _Change(log_factor, change * prior / scale * self.sd)


def _compare(runs: Runs) -> _Compared:
    """Compare each run with the median of its arm.

    The standard deviation between runs comes from successive runs of an arm and training, so that
    a change does not hide itself. A run that missed the target counts as the farthest, and one that
    was stopped within its usual epochs shows nothing.
    """
    reached: dict[int, list[float]] = {}
    pairs: list[float] = []
    before: dict[tuple[int, str | None], float] = {}
    logs = [math.log(max(1, run.epochs or 1)) for run in runs]
    for run, log in zip(runs, logs, strict=True):
        if run.status is TrialStatus.REACHED:
            key = run.arm, run.differs
            reached.setdefault(run.arm, []).append(log)
            if key in before:
                pairs.append((log - before[key]) ** 2 / 2)
            before[key] = log
    freedom = RUN_SD_WEIGHT + len(pairs)
    sd = math.sqrt((RUN_SD_WEIGHT * RUN_SD**2 + sum(pairs)) / freedom)
    middle = {arm: statistics.median(of_arm) for arm, of_arm in reached.items()}
    rows = {arm: row for row, arm in enumerate(middle)}
    counts, sums = np.zeros((2, max(1, len(rows)), len(runs)))
    for i, (run, log) in enumerate(zip(runs, logs, strict=True)):
        if run.arm not in middle or run.status is TrialStatus.CANCELLED or run.epochs is None:
            continue
        far = _FARTHEST_SDS
        if run.status is not TrialStatus.MISSED:
            far = (log - middle[run.arm]) / sd
        if run.status is not TrialStatus.STOPPED or far > 0:
            counts[rows[run.arm], i], sums[rows[run.arm], i] = 1.0, far
    return _Compared(counts, np.clip(sums, -_FARTHEST_SDS, _FARTHEST_SDS), sd, freedom)


def _weigh_training(shown: _Compared, at: NDArray[np.int_]) -> tuple[Array, Array]:
    """Return chance and shift of each run of one training, compared among themselves.

    The runs after each moment are compared with the few, the some and all runs before it: it may
    have changed more than once.
    """
    chances, shifts = np.ones(len(at)), np.zeros(len(at))
    first = 0
    while (n := len(at) - first) > 1:
        counts, sums = np.zeros((2, len(shown.counts), n + 1))
        np.cumsum(shown.counts[:, at[first:]], axis=1, out=counts[:, 1:])
        np.cumsum(shown.sums[:, at[first:]], axis=1, out=sums[:, 1:])
        until = np.arange(1, n)
        since = np.maximum(0, until - np.array(_BEFORE)[:, None])
        change = shown.compare(
            counts[:, until][:, None] - counts[:, since],
            sums[:, until][:, None] - sums[:, since],
            (counts[:, -1:] - counts[:, until])[:, None],
            (sums[:, -1:] - sums[:, until])[:, None],
        )
        odds = UNANNOUNCED * np.exp(change.log_factor)
        moved = np.array([odds, odds * change.log_shift]).mean(1) / (1 + odds.mean(0).sum())
        # What has changed since a run is the sum over the moments after it.
        changed, shift = np.append(np.cumsum(moved[:, ::-1], axis=1)[:, ::-1], [[0.0], [0.0]], 1)
        chances[first:], shifts[first:] = 1 - changed, shift
        chances[:first] *= 1 - changed[0]
        shifts[:first] += shift[0]
        doubted = int((changed <= 1 - DOUBTED).argmax())
        if not doubted:
            break
        first += doubted
    return chances, shifts
