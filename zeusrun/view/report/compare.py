"""Compares two jobs, two batch sizes or two spans of time. Pure."""

from __future__ import annotations

import datetime as dt
import re
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from zeusrun.analysis.cost_baseline import has_cost, setting
from zeusrun.errors import UsageError
from zeusrun.trial import TrialStatus
from zeusrun.view.report.words import parsed, percent
from zeusrun.view.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from zeusrun.trial import Trial

Kind = Literal["jobs", "batch sizes", "spans"]
_SPAN = re.compile(r"(\d{4}(?:-\d\d){0,2})?\.\.(\d{4}(?:-\d\d){0,2})?")
_HOW = (
    "name two jobs, two batch sizes of a job (64 256), or two spans of time "
    "(2026-01..2026-03 2026-04..)"
)


class Measure(NamedTuple):
    """One quantity of the runs that reached the target, on GPUs of their own."""

    name: str
    kind: str  # of its unit: energy, time or count
    left: tuple[float, ...]
    right: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """Two groups of runs."""

    names: tuple[str, str]
    runs: tuple[int, int]
    reached: tuple[int, int]
    measures: tuple[Measure, ...]
    headline: str
    better: bool | None  # whether the second one is; ``None``: neither
    notes: tuple[str, ...]


def find_kind(sides: tuple[str, str], jobs: Collection[str]) -> Kind:
    """Return what two words name; raises ``UsageError`` for anything else."""
    if all(side in jobs for side in sides):
        return "jobs"
    if all(side.isdecimal() and side.isascii() for side in sides):
        return "batch sizes"
    if all(_is_span(side) for side in sides):
        return "spans"
    known = ", ".join(sorted(jobs)) or "none yet"
    raise UsageError(f"--compare {' '.join(sides)}: {_HOW}; known jobs: {known}")


def within(trials: Sequence[Trial], side: str, kind: Kind) -> list[Trial]:
    """Return the trials of a job that have a batch size, or began in a span of time."""
    if kind == "batch sizes":
        return [
            trial
            for trial in trials
            if trial.global_batch_size == int(side) and trial.variant is None
        ]
    first, last = side.split("..")
    days = [(trial, parsed(trial.started_at)) for trial in trials]
    return [
        trial
        for trial, moment in days
        if moment is not None
        and first <= (day := f"{moment:%Y-%m-%d}")
        and (not last or day[: len(last)] <= last)
    ]


def compare(names: tuple[str, str], left: Sequence[Trial], right: Sequence[Trial]) -> Comparison:
    """Compare two groups of runs, by their medians."""
    measures = tuple(
        Measure(name, kind, _values(left, value), _values(right, value))
        for name, kind, value in _QUANTITIES
    )
    headline, better = _headline(names, measures[0])
    return Comparison(
        names=names,
        runs=(len(left), len(right)),
        reached=(_reached(left), _reached(right)),
        measures=measures,
        headline=headline,
        better=better,
        notes=tuple(_notes(left, right)),
    )


_QUANTITIES: tuple[tuple[str, str, Callable[[Trial], float | None]], ...] = (
    ("cost", "energy", lambda trial: trial.cost_j),
    ("energy", "energy", lambda trial: trial.energy_j),
    ("time", "time", lambda trial: trial.time_s),
    ("epochs", "count", lambda trial: trial.epochs),
)


def _values(trials: Sequence[Trial], value: Callable[[Trial], float | None]) -> tuple[float, ...]:
    found = (value(trial) for trial in trials if has_cost(trial))
    return tuple(each for each in found if each is not None)


def _reached(trials: Sequence[Trial]) -> int:
    return sum(trial.status is TrialStatus.REACHED for trial in trials)


def _headline(names: tuple[str, str], cost: Measure) -> tuple[str, bool | None]:
    first, second = names
    start = second[:1].upper() + second[1:] if second.startswith("batch size") else second
    if not cost.left or not cost.right:
        without = first if not cost.left else second
        return f"{without} has no run that reached the target with a known cost", None
    share = statistics.median(cost.right) / statistics.median(cost.left) - 1
    if abs(share) < 0.005:
        return f"{start} costs the same a run as {first}", None
    than = "less" if share < 0 else "more"
    return f"{start} costs {percent(abs(share))} {than} a run than {first}", share < 0


def _notes(left: Sequence[Trial], right: Sequence[Trial]) -> list[str]:
    """Return why costs of the two groups cannot simply be compared."""
    notes, both = [], (*left, *right)
    settings = {setting(trial) for trial in both if has_cost(trial)}
    parts = ("the objective", "the hardware", "the kind of energy (measured or estimated)")
    differ = [name for at, name in enumerate(parts) if len({each[at] for each in settings}) > 1]
    if differ:
        what = " and ".join(differ)
        notes.append(f"The runs differ in {what}, so their costs differ for that, too.")
    if adapted := sum(trial.variant is not None for trial in both):
        notes.append(f"{plural(adapted, 'run')} adapted the batch size during the training.")
    if dropped := sum(not has_cost(trial) for trial in both):
        notes.append(
            f"{plural(dropped, 'run')} did not reach the target, shared the GPUs or have no known "
            "cost; medians and dots leave them out."
        )
    return notes


def _is_span(text: str) -> bool:
    found = _SPAN.fullmatch(text)
    if found is None or text == "..":
        return False
    try:
        for date in found.groups():
            if date:
                dt.date.fromisoformat(date + "-01" * (2 - date.count("-")))
    except ValueError:
        return False
    return True
