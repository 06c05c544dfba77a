"""What the two sides of a comparison name: jobs, batch sizes or spans of time. Pure."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Literal

from zeusrun.clock import local_time
from zeusrun.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from zeusrun.trial import Trial

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
