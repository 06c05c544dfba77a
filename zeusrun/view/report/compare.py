"""Compares two groups of runs: two jobs, batch sizes or spans of time. Pure."""

from __future__ import annotations

import datetime as dt
import math
import re
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from zeusrun.analysis.amounts import MOST, Estimate
from zeusrun.analysis.curves import amount_in, curve_unit
from zeusrun.analysis.usual import has_cost, setting
from zeusrun.bandit.problem import GAUSSIAN90, RUN_SD, RUN_SD_WEIGHT, finite_exp, student
from zeusrun.bandit.proof import as_undisturbed
from zeusrun.clock import local_time
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


Kind = Literal["jobs", "batch sizes", "spans"]
_DATE = re.compile(r"[0-9]{4}(-[0-9]{2}){0,2}")
_AFTER = "~"  # sorts after every digit and dash: "2026-03~" follows the last day of that month
_HOW = (
    "name two jobs, two batch sizes of a job (64 256), or two spans of time "
    "(2026-01..2026-03 2026-04..)"
)


def find_kind(sides: tuple[str, str], jobs: Collection[str]) -> Kind:
    """Return what two words name.

    Raises:
        UsageError: If they name anything else, the same twice, or spans that share days.
    """
    flag, known = f"--compare {' '.join(sides)}", ", ".join(sorted(jobs)) or "none yet"
    kinds: dict[Kind, Callable[[str], object]] = {
        "jobs": lambda side: side in jobs,
        "batch sizes": _is_number,
        "spans": _ends,
    }
    kind = next((kind for kind, fits in kinds.items() if all(map(fits, sides))), None)
    if kind is None:
        wrong = [side for side in sides if not any(fits(side) for fits in kinds.values())]
        why = "both sides must be alike"
        if wrong:
            why = f"{wrong[0]!r} is no job, no batch size and no span of time"
        raise UsageError(f"{flag}: {why}: {_HOW}; known jobs: {known}")
    if kind == "spans":
        left, right = (_ends(side) or ("", "") for side in sides)
        if left != right and left[0] <= right[1] and right[0] <= left[1]:
            raise UsageError(f"{flag}: the spans share days; choose spans that do not")
        same = left == right
    else:
        strip = "0" if kind == "batch sizes" else ""
        same = sides[0].lstrip(strip) == sides[1].lstrip(strip)
    if same:
        raise UsageError(f"{flag}: both sides are the same; name two different {kind}")
    return kind


def within(trials: Sequence[Trial], side: str, kind: Kind) -> list[Trial]:
    """Return the trials of a job that have a batch size, or began in a span of time."""
    if kind == "batch sizes":
        size = side.lstrip("0")  # a text, because a number may have too many digits
        return [t for t in trials if str(t.global_batch_size) == size and t.variant is None]
    first, last = _ends(side) or ("", "")
    days = [(trial, local_time(trial.started_at)) for trial in trials]
    return [
        trial
        for trial, moment in days
        if moment is not None and first <= f"{moment:%Y-%m-%d}" <= last
    ]


def _is_number(side: str) -> bool:
    return side.isdecimal() and side.isascii()


def _ends(side: str) -> tuple[str, str] | None:
    """Return the first day of a span, and a text that sorts after its last day.

    ``None`` if the text is no span: its dates do not exist, or it ends before it begins.
    """
    first, dots, last = side.partition("..")
    if not (first or last) or not all(map(_is_date, filter(None, (first, last)))):
        return None
    end = (last if dots else first) + _AFTER
    return (first, end) if first <= end else None


def _is_date(text: str) -> bool:
    if _DATE.fullmatch(text) is None:
        return False
    try:
        dt.date.fromisoformat(text + "-01" * (2 - text.count("-")))
    except ValueError:
        return False
    return True
