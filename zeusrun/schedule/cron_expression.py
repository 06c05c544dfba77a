"""When a job recurs: a cron expression in a time zone, and the moments it means.

The field rules and the handling of daylight saving are those of Debian's cron (crontab(5)), as
cronsim has them: a fixed time that a change skips comes at the end of the gap, one that comes
twice is meant once, and expressions with ``*`` in hour or minute go by elapsed time.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
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
    """The moments at which a job recurs.

    Attributes:
        expression: Five fields, as crontab(5) has them.
        tz: The name of a time zone, as the IANA database has it; ``None`` for the machine's own.
    """

    expression: str
    tz: str | None = None

    def zone(self) -> tzinfo:
        """Return the time zone.

        Raises:
            UsageError: If there is none of this name.
        """
        return read_zone(self.tz)

    def following(self, after: float) -> Iterator[float]:
        """Yield the occurrences after a moment, in Unix seconds, ascending, each once."""
        if self.expression.startswith("*") or self.expression.split()[1].startswith("*"):
            yield from self._by_elapsed_time(after)
            return
        last = after
        # It looks at whole minutes and may set a skipped one in the future of another.
        moments = CronSim(self.expression, datetime.fromtimestamp(after, self.zone()))
        for moment in moments:
            if moment.timestamp() > last:
                last = moment.timestamp()
                yield last

    def _by_elapsed_time(self, after: float) -> Iterator[float]:
        """Yield every moment whose local time matches, whatever clocks do in between.

        Each stretch of time with one offset from UTC is looked at by itself: cronsim 2.8 loses an
        occurrence where a clock changes by half an hour (Lord Howe Island).
        """
        zone, start = self.zone(), after
        while True:
            offset = datetime.fromtimestamp(start + _MINUTE_S, zone).utcoffset()
            moments = CronSim(
                self.expression, datetime.fromtimestamp(start, timezone(offset or timedelta()))
            )
            for moment in moments:
                found = moment.timestamp()
                if found - start > _DAY_S:  # much may have changed until then
                    start = found - _DAY_S
                    break
                if datetime.fromtimestamp(found, zone).utcoffset() != offset:
                    start = _change_before(found, start, zone) - _MINUTE_S
                    break
                start = found
                yield found

    def between(self, after: float, until: float, most: int) -> list[float]:
        """Return the last ``most`` occurrences after one moment and up to another, ascending."""
        found: deque[float] = deque(maxlen=most)
        for span_s in _SPANS_S:  # the last day is enough for most, however long nobody has looked
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
            spelt = _spell_steps(self.expression)
            text = _in_words(CronSim(spelt, datetime.now(timezone.utc)).explain())
        return text if self.tz is None else f"{text} ({self.tz})"

    def local(self, moment: float) -> datetime:
        """Return a moment as its time zone has it."""
        return datetime.fromtimestamp(moment, self.zone())


_DAY_S = timedelta(days=1).total_seconds()
_MINUTE_S = 60.0
_SPANS_S = (_DAY_S, 32 * _DAY_S, math.inf)


def _change_before(late: float, early: float, zone: tzinfo) -> float:
    """Return the first minute at which the offset from UTC is that of a later moment."""
    low, high = early // _MINUTE_S, late // _MINUTE_S
    target = datetime.fromtimestamp(late, zone).utcoffset()
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle * _MINUTE_S, zone).utcoffset() == target:
            high = middle
        else:
            low = middle
    return high * _MINUTE_S


def build_timetable(text: str, tz: str | None = None) -> Timetable:
    """Read an expression: five fields, a macro such as ``@daily``, or ``@every 6h``.

    Raises:
        UsageError: If it is none, never comes true, or the time zone is unknown.
    """
    expression = _expand(" ".join(text.split()))
    timetable = Timetable(expression, tz)
    zone = timetable.zone()
    _check_steps(expression)
    try:
        moments = CronSim(expression, datetime.now(zone))
    except CronSimError as error:
        if _never_comes(expression):
            raise UsageError(f"{text!r} never comes: no month has such a day") from None
        raise UsageError(
            f"{text!r} is no cron expression ({_reason(str(error))}); write minute, hour, day of "
            'month, month and day of week: "0 2 * * *" is every day at 02:00'
        ) from None
    if not list(itertools.islice(moments, 1)):
        raise UsageError(f"{text!r} never comes: no month has such a day")
    return timetable


def _never_comes(expression: str) -> bool:
    """Whether it is only the month that keeps an expression from ever coming true."""
    fields = expression.split()
    try:
        CronSim(" ".join([*fields[:3], "*", fields[4]]), datetime.now(timezone.utc))
        CronSim(" ".join([*fields[:2], "*", *fields[3:]]), datetime.now(timezone.utc))
    except CronSimError:
        return False
    return True


def read_zone(name: str | None) -> tzinfo:
    """Return a time zone by its name; ``None`` means the machine's own.

    Raises:
        UsageError: If there is none of this name.
    """
    if name is None:
        try:
            with _LOCAL_ZONE.open("rb") as file:
                return ZoneInfo.from_file(file)
        except (OSError, ValueError):
            return timezone.utc  # as the C library has it
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        hint = _meant(name) or "name one as the IANA database does, such as Europe/Paris"
        raise UsageError(f"{name!r} is no time zone; {hint}") from None


def _meant(name: str) -> str | None:
    """Ask whether a zone of a similar name was meant, or one of a city that is named alone."""
    zones = {zone.casefold(): zone for zone in sorted(available_timezones())}
    cities = {zone.rpartition("/")[2]: zone for zone in zones}
    word = name.casefold().replace(" ", "_")
    close = difflib.get_close_matches(word, [*zones, *cities], n=1, cutoff=0.75)
    return f"did you mean {zones[cities.get(close[0], close[0])]}?" if close else None


def read_zone_name() -> str | None:
    """Return the name of the machine's own time zone; ``None`` if it cannot be told."""
    _, found, name = str(_LOCAL_ZONE.resolve()).partition("/zoneinfo/")
    if found and name in available_timezones():
        return name
    return None if _LOCAL_ZONE.exists() else "Etc/UTC"


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
        raise UsageError(f"{text!r}: cron counts days within a month; name days, or use @every 1d")
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
    """Say ``every 6 hours`` where that is what a step means: it divides its field."""
    match = _STEPS.fullmatch(expression)
    if match is None:
        return None
    step, whole, units = (
        (int(match[1]), 60, "minutes") if match[1] else (int(match[2]), 24, "hours")
    )
    return f"every {step} {units}" if 1 < step < whole and whole % step == 0 else None


def _spell_steps(expression: str) -> str:
    """Name the values of a step that does not divide its field: they are no interval."""
    fields = expression.split()
    for index, (field, whole, first) in enumerate(zip(fields, _LENGTHS, _FIRSTS, strict=True)):
        match = re.fullmatch(r"\*/([0-9]+)", field)
        if match is not None and whole % int(match[1]):
            values = range(first, first + whole, int(match[1]))
            fields[index] = ",".join(map(str, values))
    return " ".join(fields)


def _check_steps(expression: str) -> None:
    """Refuse a step that is longer than its field: it would mean something else.

    Raises:
        UsageError: Then.
    """
    for field, whole, name in zip(expression.split(), _LENGTHS, _NAMES, strict=True):
        for step in re.findall(r"/([0-9]+)", field):
            if int(step) >= whole:
                raise UsageError(
                    f"{expression!r}: a step of {step} in the field of {name}s, which has {whole}, "
                    "is no interval; name the times"
                )


_LENGTHS = (60, 24, 31, 12, 7)
_FIRSTS = (0, 0, 1, 1, 0)
_NAMES = ("minute", "hour", "day", "month", "weekday")


def _in_words(text: str) -> str:
    """Turn ``At 02:00 every day`` into ``every day at 02:00``."""
    text = text.replace(" day of month and on ", " day of the month and also on ")
    match = re.fullmatch(r"At ([0-9:]+) (every day|on .+)", text)
    if match is not None:
        return f"{match[2]} at {match[1]}"
    return text[:1].lower() + text[1:]
