"""Compares two groups of runs: two jobs, or two batch sizes. Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.analysis.amounts import MOST, Estimate
from zeusrun.analysis.curves import amount_in, curve_unit
from zeusrun.analysis.usual import has_cost, setting
from zeusrun.bandit.problem import GAUSSIAN90, RUN_SD, RUN_SD_WEIGHT, finite_exp, student
from zeusrun.bandit.proof import as_undisturbed
from zeusrun.cost import energy_text
from zeusrun.errors import UsageError
from zeusrun.trial import EnergySource, TrialStatus, adapts
from zeusrun.view import units
from zeusrun.view.claims import claim_against, is_good, short_share
from zeusrun.view.report.headline import capitalized, unbroken

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from zeusrun.trial import Trial

_FEW = 3  # values: the median of fewer is their mean, and they show no spread
_MOST_LOG = 20.0


class Measure(NamedTuple):
    """One quantity of the runs that reached the target, on GPUs of their own."""

    name: str
    kind: str  # of its unit: energy, time or count
    left: tuple[float, ...]
    right: tuple[float, ...]
    saved: Estimate | None  # by the right side, as a share of the left one


@dataclass(frozen=True)
class GroupComparison:
    """Two groups of runs."""

    subject: str  # their job, or that they are of two
    names: tuple[str, str]
    runs: tuple[int, int]
    reached: tuple[int, int]
    measures: tuple[Measure, ...]
    headline: str
    better: bool | None  # whether the second one is; ``None``: neither, or the runs differ
    differ: str | None  # a sentence: in what else than their batch size the runs differ
    notes: tuple[str, ...]
    estimated: tuple[str, str] = ("", "")  # of their energy: "estimated", "partly estimated"


def compare(
    subject: str, names: tuple[str, str], left: Sequence[Trial], right: Sequence[Trial]
) -> GroupComparison:
    """Compare two groups of runs, by their medians."""
    measures = []
    unit = curve_unit([*left, *right])
    # Joules of measured and of estimated energy are never compared.
    sources = (trial.energy_source for trial in (*left, *right) if has_cost(trial))
    apart = len({source.measured for source in sources if source is not None}) > 1
    lengths = (unit, "count", lambda trial: amount_in(trial, unit))
    for name, kind, value in (*_QUANTITIES, lengths):
        sides = _values(left, value), _values(right, value)
        measures.append(
            Measure(name, kind, *sides, None if apart and kind == "energy" else _find_saved(*sides))
        )
    headline, better = _headline(names, measures[0])
    differ = _difference([*left, *right])
    return GroupComparison(
        subject=subject,
        names=names,
        runs=(len(left), len(right)),
        reached=(_reached(left), _reached(right)),
        measures=tuple(measures),
        headline=headline,
        better=None if differ else better,
        differ=differ,
        notes=tuple(_notes(left, right)),
        estimated=(_estimated(left), _estimated(right)),
    )


_QUANTITIES: tuple[tuple[str, str, Callable[[Trial], float | None]], ...] = (
    ("cost", "energy", lambda trial: trial.cost_j),
    ("energy", "energy", lambda trial: trial.energy_j),
    ("time", "time", lambda trial: trial.time_s),
)


def _values(trials: Sequence[Trial], value: Callable[[Trial], float | None]) -> tuple[float, ...]:
    found = (value(as_undisturbed(trial)) for trial in trials if has_cost(trial))
    return tuple(each for each in found if each is not None and each < MOST)


def _reached(trials: Sequence[Trial]) -> int:
    return sum(trial.status is TrialStatus.REACHED for trial in trials)


def _headline(names: tuple[str, str], cost: Measure) -> tuple[str, bool | None]:
    first, second = names
    start = capitalized(second) if second.startswith("batch size") else second
    if not cost.left or not cost.right:
        without = first if not cost.left else second
        return f"{without} has no run that reached the target with a known cost", None
    if cost.saved is None:
        return f"{start} and {first} cannot be compared", None
    return unbroken(claim_against(cost.saved, start, first)), is_good(cost.saved)


def _find_saved(left: Sequence[float], right: Sequence[float]) -> Estimate | None:
    """Return by how much the median of ``right`` is less, as a share of that of ``left``.

    The range is Welch's, of logarithms. The spread of each group is its own and, as much as three
    degrees of freedom, that of both, which in turn is that of other jobs as much as three.
    ``None``: a side is empty, has a value of 0, or is of damaged records.
    """
    if not left or not right or min(*left, *right) <= 0:
        return None
    ratio = math.log(statistics.median(right)) - math.log(statistics.median(left))
    if abs(ratio) > _MOST_LOG:  # of damaged records
        return None
    squares = [statistics.pvariance(map(math.log, each)) * len(each) for each in (left, right)]
    freedoms = [RUN_SD_WEIGHT + len(each) - 1 for each in (left, right)]
    both = (RUN_SD_WEIGHT * RUN_SD**2 + sum(squares)) / (sum(freedoms) - RUN_SD_WEIGHT)
    variances = []  # of the medians
    for values, own, freedom in zip((left, right), squares, freedoms, strict=True):
        few = len(values) < _FEW
        loss = 1.0 if few else math.pi / 2  # of the median against the mean
        prior = max(both, RUN_SD**2) if few else both
        variances.append(loss * (RUN_SD_WEIGHT * prior + own) / freedom / len(values))
    variance = sum(variances)
    freedom = variance**2 / sum(
        each**2 / own for each, own in zip(variances, freedoms, strict=True)
    )
    half = student(GAUSSIAN90, freedom) * math.sqrt(variance)
    return Estimate(*(1 - finite_exp(ratio + each) for each in (0.0, half, -half)))


def _estimated(trials: Sequence[Trial]) -> str:
    """Return how far the energy of the runs that count is an estimate."""
    sources = [t.energy_source for t in trials if has_cost(t) and t.energy_j is not None]
    if EnergySource.ESTIMATED not in sources:
        return ""
    return "estimated" if len(set(sources)) == 1 else "partly estimated"


def _difference(trials: Sequence[Trial]) -> str | None:
    """Return why the costs of two groups cannot simply be compared; ``None`` if they can."""
    settings = {setting(trial) for trial in trials if has_cost(trial)}
    parts = ("the objective", "the hardware", "the kind of energy (measured or estimated)")
    differ = [name for at, name in enumerate(parts) if len({each[at] for each in settings}) > 1]
    if not differ:
        return None
    return f"The runs differ in {' and '.join(differ)}, so their costs differ for that, too."


def _notes(left: Sequence[Trial], right: Sequence[Trial]) -> list[str]:
    notes, both = [], (*left, *right)
    if adapted := sum(adapts(trial.variant) for trial in both):
        notes.append(f"{units.plural(adapted, 'run')} adapted the batch size during the training.")
    if dropped := sum(not has_cost(trial) for trial in both):
        one = dropped == 1
        notes.append(
            f"{units.plural(dropped, 'run')} did not reach the target, shared a GPU or the CPU, "
            "changed the training or the number of ranks, began anew or may have, or "
            f"{'has' if one else 'have'} no known cost; medians and dots leave "
            f"{'it' if one else 'them'} out."
        )
    return notes


def comparison_rows(comparison: GroupComparison) -> list[dict[str, str]]:
    """Return the rows of a table: what, both sides with median and range, and the difference."""
    heads = ["of a run", *comparison.names, "difference"]
    if len(set(heads)) < len(heads):  # such as a job called "difference"
        heads[1:3] = [f"{name} ({n})" for n, name in enumerate(comparison.names, 1)]
    rows = [
        ("runs", *map(str, comparison.runs), ""),
        ("reached the target", *map(str, comparison.reached), ""),
    ]
    for measure in comparison.measures:
        difference = units.UNKNOWN
        if (saved := measure.saved) is not None:
            more = -saved
            difference = ("+" if round(more.value, 2) > 0 else "") + unbroken(short_share(more))
        texts = [_text(values, measure.kind) for values in (measure.left, measure.right)]
        if measure.name == "energy":
            how = comparison.estimated
            texts = [f"{t}, {e}" if e else t for t, e in zip(texts, how, strict=True)]
        rows.append((measure.name, *texts, difference))
    return [dict(zip(heads, row, strict=True)) for row in rows]


def _text(values: Sequence[float], kind: str) -> str:
    """Return a median and a range: ``1.24 kJ (1.02 kJ to 1.40 kJ)``."""
    if not values:
        return units.UNKNOWN
    numbers = (statistics.median(values), min(values), max(values))
    middle, low, high = (_amount(number, kind) for number in numbers)
    return middle if len(values) == 1 else f"{middle} ({low} to {high})"


def _amount(value: float, kind: str) -> str:
    if kind == "energy":
        return units.energy(value)
    if kind == "count":
        return units.count(value)
    # Short times have three digits, so two that differ by a percent look different.
    return units.duration(value) if value >= 59.95 else energy_text(value).replace("J", "s")


def find_sizes(sides: tuple[str, str], jobs: Collection[str]) -> tuple[str, str] | None:
    """Return the two batch sizes that two words name; ``None`` if they name two jobs.

    Both are texts: ``int`` refuses a number with thousands of digits.

    Raises:
        UsageError: If they name anything else, or the same twice.
    """
    flag, sizes = f"--compare {' '.join(sides)}", None
    if not all(side in jobs for side in sides):
        if not all(map(_is_size, sides)):
            wrong = [side for side in sides if side not in jobs and not _is_size(side)]
            why = f"{wrong[0]!r} is no job and no batch size" if wrong else "they must be alike"
            known = ", ".join(sorted(jobs)) or "none yet"
            how = "name two jobs, or two batch sizes of a job (64 256)"
            raise UsageError(f"{flag}: {why}; {how}; known jobs: {known}")
        sizes = sides[0].lstrip("0") or "0", sides[1].lstrip("0") or "0"
    if len({*(sizes or sides)}) == 1:
        what = "jobs" if sizes is None else "batch sizes"
        raise UsageError(f"{flag}: both sides are the same; name two different {what}")
    return sizes


def of_size(trials: Sequence[Trial], size: str) -> list[Trial]:
    """Return the trials that have a batch size, and kept it."""
    return [t for t in trials if str(t.global_batch_size) == size and t.variant is None]


def _is_size(side: str) -> bool:
    return side.isdecimal() and side.isascii()
