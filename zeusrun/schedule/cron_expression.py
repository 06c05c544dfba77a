"""When a job recurs: a cron expression in a time zone, and its occurrences.

The field rules and the handling of daylight saving are those of Debian's cron (crontab(5)), as
cronsim implements them: a fixed time that a clock change skips occurs at the end of the gap, one
that occurs twice counts once, and an expression with ``*`` in hour or minute goes by elapsed time.
Where a zone changes by less than an hour, cronsim 2.8 skips some of the latter: docs/schedules.md.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from zeusrun.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_EVERY = re.compile(r"@every\s+([0-9]{1,4})\s*([mhd])", re.IGNORECASE)
_WHOLE = {"m": (60, "*/{} * * * *", "minutes"), "h": (24, "0 */{} * * *", "hours")}
_STEPS = re.compile(r"\*/([0-9]+) \* \* \* \*|0 \*/([0-9]+) \* \* \*")
_FIELDS = 5
_LOCAL_ZONE = Path("/etc/localtime")


@dataclass(frozen=True)
class Timetable:
    """The times at which a job recurs.

    Attributes:
        expression: Five fields as in crontab(5).
        tz: The name of a time zone in the IANA database; ``None`` for the machine's own.
    """

    expression: str
    tz: str | None = None

    def zone(self) -> tzinfo:
        """Return the time zone.

        Raises:
            UsageError: If there is no time zone of this name.
        """
        return read_zone(self.tz)

    def following(self, after: float) -> Iterator[float]:
        """Yield the occurrences after a time, in Unix seconds, ascending, each once."""
        last = after
        # After a start within a minute, or a skipped time, cronsim may return a time again.
        for moment in CronSim(self.expression, datetime.fromtimestamp(after, self.zone())):
            if moment.timestamp() > last:
                last = moment.timestamp()
                yield last

    def between(self, after: float, until: float, most: int) -> list[float]:
        """Return the last ``most`` occurrences after one time and up to another, ascending."""
        found: deque[float] = deque(maxlen=most)
        for span_s in _SPANS_S:  # usually the last day contains enough
            start = max(after, until - span_s)
            moments = itertools.takewhile(lambda moment: moment <= until, self.following(start))
            found = deque(moments, maxlen=most)
            if len(found) == most or start == after:
                break
        return list(found)

    def describe(self) -> str:
        """Return the expression in words: ``every day at 02:00 (Europe/Paris)``."""
        text = _every(self.expression)
        if text is None:
            text = _in_words(CronSim(self.expression, datetime.now(timezone.utc)).explain())
        return text if self.tz is None else f"{text} ({self.tz})"

    def local(self, moment: float) -> datetime:
        """Return a time in the time zone."""
        return datetime.fromtimestamp(moment, self.zone())


_DAY_S = 86400.0
_SPANS_S = (_DAY_S, 32 * _DAY_S, math.inf)


def build_timetable(text: str, tz: str | None = None) -> Timetable:
    """Read an expression: five fields, a macro such as ``@daily``, or ``@every 6h``.

    Raises:
        UsageError: If it is not valid or never occurs, or the time zone is unknown.
    """
    expression = _expand(" ".join(text.split()))
    timetable = Timetable(expression, tz)
    zone = timetable.zone()
    _check_steps(expression)
    try:
        moments = CronSim(expression, datetime.now(zone))
    except CronSimError as error:
        raise UsageError(
            f"{text!r} is no cron expression ({_reason(str(error))}); write minute, hour, day of "
            'month, month and day of week: "0 2 * * *" is every day at 02:00'
        ) from None
    if not list(itertools.islice(moments, 1)):
        raise UsageError(f"{text!r} never occurs: no month has such a day")
    return timetable


def read_zone(name: str | None) -> tzinfo:
    """Return a time zone by its name; ``None`` means the machine's own.

    Raises:
        UsageError: If there is no time zone of this name.
    """
    if name is None:
        try:
            with _LOCAL_ZONE.open("rb") as file:
                return ZoneInfo.from_file(file)
        except (OSError, ValueError):
            return timezone.utc  # as the C library does
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        hint = _meant(name) or "use a name of the IANA database, such as Europe/Paris"
        raise UsageError(f"{name!r} is no time zone; {hint}") from None


def _meant(name: str) -> str | None:
    """Suggest a zone of a similar name, or the zone of a city."""
    zones = {zone.casefold(): zone for zone in sorted(available_timezones())}
    cities = {zone.rpartition("/")[2]: zone for zone in zones}
    word = name.casefold().replace(" ", "_")
    close = difflib.get_close_matches(word, [*zones, *cities], n=1, cutoff=0.75)
    return f"did you mean {zones[cities.get(close[0], close[0])]}?" if close else None


def _expand(text: str) -> str:
    if not text.startswith("@"):
        if (count := len(text.split())) != _FIELDS:
            if (macro := f"@{text.lower()}") in _MACROS:
                raise UsageError(f"{text!r} is no cron expression; did you mean {macro}?")
            raise UsageError(
                f"{text!r} is no cron expression: it has {count} fields, not {_FIELDS}; "
                "write minute, hour, day of month, month and day of week"
            )
        return text.upper()
    if text.lower() in _MACROS:
        return _MACROS[text.lower()]
    match = _EVERY.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r}: zeusrun knows {', '.join(_MACROS)} and @every with a number and m, h or d, "
            "such as @every 6h"
        )
    number, unit = int(match[1]), match[2].lower()
    if unit == "d":
        if number == 1:
            return _MACROS["@daily"]
        raise UsageError(
            f"{text!r}: cron counts days within a month; list the days, or use @every 1d"
        )
    whole, pattern, units = _WHOLE[unit]
    if number == whole:
        return _MACROS["@hourly" if unit == "m" else "@daily"]
    if not 0 < number < whole or whole % number:
        fit = ", ".join(str(n) for n in range(1, whole + 1) if whole % n == 0)
        raise UsageError(f"{text!r}: cron can do every {fit} {units} only")
    return pattern.format(number).replace("*/1 ", "* ")


def _reason(error: str) -> str:
    return error[:1].lower() + error[1:]


def _every(expression: str) -> str | None:
    """Return ``every 6 hours`` for a step that divides its field; ``None`` for others."""
    match = _STEPS.fullmatch(expression)
    if match is None:
        return None
    step, whole, units = (
        (int(match[1]), 60, "minutes") if match[1] else (int(match[2]), 24, "hours")
    )
    return f"every {step} {units}" if 1 < step < whole and whole % step == 0 else None


def _check_steps(expression: str) -> None:
    """Refuse a step that is longer than its field: cron would read it as its first value.

    Raises:
        UsageError: If there is one.
    """
    for field, whole, name in zip(expression.split(), _LENGTHS, _NAMES, strict=True):
        for step in re.findall(r"/([0-9]+)", field):
            if int(step) >= whole:
                raise UsageError(
                    f"{expression!r}: a step of {step} in the field of {name}s, which has {whole}, "
                    "is no interval; list the times"
                )


_LENGTHS = (60, 24, 31, 12, 7)
_NAMES = ("minute", "hour", "day", "month", "weekday")


def _in_words(text: str) -> str:
    """Turn ``At 02:00 every day`` into ``every day at 02:00``."""
    text = text.replace(" day of month and on ", " day of the month and also on ")
    match = re.fullmatch(r"At ([0-9:]+) (every day|on .+)", text)
    if match is not None:
        return f"{match[2]} at {match[1]}"
    return text[:1].lower() + text[1:]
