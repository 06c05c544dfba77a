"""When a job recurs: a cron expression in a time zone.

The field rules and the handling of daylight saving are those of Debian's cron (crontab(5)), as
cronsim implements them; docs/schedules.md says where cronsim 2.8 differs.
"""

from __future__ import annotations

import difflib
import itertools
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
_FIELDS = {"minute": 60, "hour": 24, "day": 31, "month": 12, "weekday": 7}
_LOCAL_ZONE = Path("/etc/localtime")


@dataclass(frozen=True)
class Timetable:
    """The times at which a job recurs: five fields as in crontab(5).

    ``tz`` is a time zone of the IANA database; ``None`` for the machine's own.
    """

    expression: str
    tz: str | None = None

    def zone(self) -> tzinfo:
        """Return the time zone; ``UsageError`` if there is none of this name."""
        if self.tz is None:
            try:
                with _LOCAL_ZONE.open("rb") as file:
                    return ZoneInfo.from_file(file)
            except (OSError, ValueError):
                return timezone.utc  # as the C library does
        try:
            return ZoneInfo(self.tz)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            close = difflib.get_close_matches(self.tz, available_timezones(), n=1, cutoff=0.55)
            hint = f"did you mean {close[0]}?" if close else "use a name such as Europe/Paris"
            raise UsageError(f"{self.tz!r} is not a time zone; {hint}") from None

    def following(self, after: float) -> Iterator[float]:
        """Yield the occurrences after a time, in Unix seconds, ascending, each once."""
        last = after
        # After a start within a minute, or a skipped time, cronsim may return a time again.
        for moment in CronSim(self.expression, self.local(after)):
            if moment.timestamp() > last:
                last = moment.timestamp()
                yield last

    def between(self, after: float, until: float, count: int) -> list[float]:
        """Return the last ``count`` occurrences after one time and up to another, ascending."""
        moments = itertools.takewhile(lambda moment: moment <= until, self.following(after))
        return list(deque(moments, maxlen=count))

    def describe(self) -> str:
        """Return the expression in words: ``at 02:00 every day (Europe/Paris)``."""
        text = CronSim(self.expression, datetime.now(timezone.utc)).explain()
        # cron runs the job on a day that matches either field.
        text = text.replace(" day of month and on ", " day of the month and also on ")
        text = text[:1].lower() + text[1:]
        return text if self.tz is None else f"{text} ({self.tz})"

    def local(self, moment: float) -> datetime:
        """Return a time in the time zone."""
        return datetime.fromtimestamp(moment, self.zone())


def build_timetable(text: str, tz: str | None = None) -> Timetable:
    """Read an expression: five fields, or a macro such as ``@daily``.

    Raises:
        UsageError: If it is not valid or never occurs, or the time zone is unknown.
    """
    expression = _expand(" ".join(text.split()))
    timetable = Timetable(expression, tz)
    _check_steps(expression)
    try:
        moments = CronSim(expression, datetime.now(timetable.zone()))
    except CronSimError as error:
        raise UsageError(
            f"{text!r} is not a cron expression ({str(error).lower()}); write minute, hour, day of "
            'month, month and day of week: "0 2 * * *" is every day at 02:00'
        ) from None
    if next(moments, None) is None:
        raise UsageError(f"{text!r} never occurs: no month has such a day")
    return timetable


def _expand(text: str) -> str:
    """Return the five fields of an expression or a macro."""
    name = text.lower()
    if name in _MACROS:
        return _MACROS[name]
    if f"@{name}" in _MACROS:
        raise UsageError(f"{text!r} is not a cron expression; did you mean @{name}?")
    if not text.startswith("@"):
        if (count := len(text.split())) != len(_FIELDS):
            raise UsageError(
                f"{text!r} is not a cron expression: it has {count} fields, not {len(_FIELDS)}; "
                "write minute, hour, day of month, month and day of week"
            )
        return text.upper()
    raise UsageError(f"{text!r}: zeusrun knows {', '.join(_MACROS)}, and five fields")


def _check_steps(expression: str) -> None:
    """Refuse a step that is longer than its field: cron would run the job at its first value."""
    for field, (name, size) in zip(expression.split(), _FIELDS.items(), strict=True):
        for step in re.findall(r"/([0-9]+)", field):
            if int(step) >= size:
                raise UsageError(
                    f"{expression!r}: a step of {step} in the field of {name}s, which has {size}, "
                    "is not an interval; list the times"
                )
