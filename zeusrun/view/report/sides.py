"""What the two sides of a comparison name: jobs, batch sizes or spans of time. Pure."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Literal

from zeusrun.clock import local_time
from zeusrun.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from zeusrun.trial import Trial

Kind = Literal["jobs", "batch sizes", "spans"]
_DATE = re.compile(r"[0-9]{4}(-[0-9]{2}){0,2}")
_LIKE_A_SPAN = re.compile(r"[0-9.-]*([0-9]-|\.\.)[0-9.-]*")
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
    said = f"--compare {' '.join(sides)}"
    if all(side in jobs for side in sides):
        kind: Kind = "jobs"
        same = sides[0] == sides[1]
    elif all(_is_number(side) for side in sides):
        kind, same = "batch sizes", sides[0].lstrip("0") == sides[1].lstrip("0")
    else:
        known = ", ".join(sorted(jobs)) or "none yet"
        for side in sides:
            if side not in jobs and not _is_number(side):
                _check_span(said, side, known)
        if any(side in jobs or (_is_number(side) and not _DATE.fullmatch(side)) for side in sides):
            raise UsageError(f"{said}: both sides must be alike: {_HOW}; known jobs: {known}")
        for side in sides:  # a number, too, is a year beside a span
            _check_span(said, side, known)
        left, right = map(_ends, sides)
        kind, same = "spans", left == right
        if not same and left[0] <= right[1] and right[0] <= left[1]:
            raise UsageError(f"{said}: the spans share days; choose spans that do not")
    if same:
        raise UsageError(f"{said}: both sides are the same; name two different {kind}")
    return kind


def within(trials: Sequence[Trial], side: str, kind: Kind) -> list[Trial]:
    """Return the trials of a job that have a batch size, or began in a span of time."""
    if kind == "batch sizes":
        size = side.lstrip("0")  # a text, because a number may have too many digits
        return [t for t in trials if str(t.global_batch_size) == size and t.variant is None]
    first, last = _ends(side)
    days = [(trial, local_time(trial.started_at)) for trial in trials]
    return [
        trial
        for trial, moment in days
        if moment is not None and first <= f"{moment:%Y-%m-%d}" <= last
    ]


def _is_number(side: str) -> bool:
    return side.isdecimal() and side.isascii()


def _ends(side: str) -> tuple[str, str]:
    """Return the first day of a span, and a text that sorts after its last day."""
    first, dots, last = side.partition("..")
    return first, (last if dots else first) + _AFTER


def _check_span(said: str, side: str, known: str) -> None:
    """Raise ``UsageError`` unless a word is a span of time; it is no job and no batch size."""
    if not _LIKE_A_SPAN.fullmatch(side) and not _is_number(side):
        raise UsageError(f"{said}: there is no job called {side!r}; {_HOW}; known jobs: {known}")
    first, dots, last = side.partition("..")
    for date in (first, last):
        if (date or not (first or last)) and not _is_date(date):
            what = f"{date!r} in {side!r}" if dots and date else repr(side)
            raise UsageError(f"{said}: {what} is no year, month or day, such as 2026-11 or 2026..")
    start, end = _ends(side)
    if start > end:
        raise UsageError(f"{said}: the span {side!r} ends before it begins")


def _is_date(text: str) -> bool:
    if _DATE.fullmatch(text) is None:
        return False
    try:
        dt.date.fromisoformat(text + "-01" * (2 - text.count("-")))
    except ValueError:
        return False
    return True
