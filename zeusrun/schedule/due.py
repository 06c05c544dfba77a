"""The times that a cron expression means, which of them a tick starts, and which are missed. Pure.

cron or the daemon runs a tick about once a minute. Ticks may be late or missing
for days, and the clock may have been set. Every occurrence is decided exactly once.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections import deque
from dataclasses import dataclass, replace
from datetime import datetime, timezone, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from zeusrun.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeusrun.jobfile.validators import CatchUp, StartBy

ON_TIME_S = 300.0
"""An occurrence that a tick sees within this time is on time: the machine may only be busy."""

PERIOD_S = 60.0
"""A process is started within this many seconds before its occurrence."""

LOOK_S = 900.0
"""After this time, a planned start is decided anew: the prices may differ."""

_SET_BACK_S = 3 * 3600.0  # a clock set back by less, as for daylight saving, repeats nothing
_NO_CLOCK = 1_735_689_600.0  # 2025: a correct clock is later than this
_ABSENT = "nothing ran that could start it"
_MAX_TRIES = 5
_MAX_MISSED = 100  # missed occurrences that are recorded one by one


@dataclass(frozen=True)
class Rules:
    """How a job recurs.

    Attributes:
        timetable: When it is due.
        catch_up: Of the occurrences that were due while no tick ran: run none, or the newest once.
        deadline_s: An occurrence not started within this time is missed; ``None`` for no limit.
        start_within_s: An occurrence may be deferred by this time, until power is cheap; 0: never.
        finish_by: A time of day by which it should end, such as ``07:30``; ``None``: at any time.
        by: What makes a start good.
    """

    timetable: Timetable
    catch_up: CatchUp = "none"
    deadline_s: float | None = None
    start_within_s: float = 0.0
    finish_by: str | None = None
    by: StartBy = "price"

    @property
    def may_defer(self) -> bool:
        """Whether an occurrence may start later than it is due."""
        return self.start_within_s > 0

    def latest_at(self, occurrence: float) -> float:
        """Return until when an occurrence may be deferred: never until the next one is due."""
        if not self.may_defer:
            return occurrence
        following = next(self.timetable.following(occurrence), math.inf)
        return max(occurrence, min(occurrence + self.start_within_s, following - PERIOD_S))

    def finish_at(self, occurrence: float) -> float | None:
        """Return when an occurrence should have ended: the first ``finish_by`` after it."""
        if self.finish_by is None:
            return None
        hour, minute = self.finish_by.split(":")
        daily = replace(self.timetable, expression=f"{int(minute)} {int(hour)} * * *")
        return next(daily.following(occurrence))


@dataclass(frozen=True)
class PlannedStart:
    """When an occurrence that may be deferred starts, in Unix seconds, and when that was decided.

    ``why`` is for people: ``0.19 EUR/kWh instead of 0.34``.
    """

    start_at: float
    decided_at: float
    why: str

    def holds(self, now: float) -> bool:
        """Whether it need not be decided anew; it must be, too, if the clock was set back."""
        return 0 <= now - self.decided_at < LOOK_S

    def describe(self, timetable: Timetable, occurrence: float) -> str:
        """Return the start and the reason: ``at 03:00: 0.19 EUR/kWh instead of 0.34``."""
        if self.start_at - occurrence < PERIOD_S:
            return f"at once: {self.why}"
        due, start = timetable.local(occurrence), timetable.local(self.start_at)
        day = "" if start.date() == due.date() else f"{start:%a} "
        return f"at {day}{start:%H:%M}: {self.why}"


@dataclass(frozen=True)
class Cursor:
    """Which occurrences have been decided: all up to the Unix second ``until``."""

    until: float
    pending: float | None = None  # the occurrence to start, which has not begun
    tries: int = 0  # how many processes have been started for it
    planned: PlannedStart | None = None  # its start, if it is deferred

    def begins_at(self, rules: Rules, now: float) -> float:
        """Return when a process is needed for what is pending: to run it, or to plan its start."""
        if self.pending is None:
            return math.inf
        if rules.may_defer and self.planned is not None and self.planned.holds(now):
            return self.planned.start_at
        return self.pending


def find_due(rules: Rules, cursor: Cursor, now: float) -> tuple[Cursor, dict[float, str]]:
    """Decide the occurrences since the last tick.

    Store the cursor that it returns before anything is started. It also returns the missed
    occurrences, each with the reason.
    """
    if now < _NO_CLOCK:  # at boot, before the time is known
        return cursor, {}
    if cursor.until - now > _SET_BACK_S:  # the clock was ahead when ``until`` was written
        begun = cursor.pending is not None and cursor.pending <= now  # it is deferred
        cursor = Cursor(now, cursor.pending, cursor.tries) if begun else Cursor(now)
    due = rules.timetable.between(cursor.until, now, _MAX_MISSED)
    missed = dict.fromkeys(due[:-1], _ABSENT)
    pending, tries, planned = cursor.pending, cursor.tries, cursor.planned
    if due:
        if pending is not None:
            missed[pending] = "the next one was due before it could start"
        pending, tries, planned = due[-1], 0, None
    found = Cursor(max(cursor.until, now), pending, tries, planned)
    if pending is not None and (why := why_missed(rules, found, now)):
        missed[pending] = why
        found = Cursor(found.until)
    return found, missed


def why_missed(rules: Rules, cursor: Cursor, now: float) -> str | None:
    """Return why what is pending must not start any more; ``None`` if it may start."""
    pending, tries = cursor.pending, cursor.tries
    if pending is None:
        return None
    if rules.deadline_s is not None and now - pending > rules.deadline_s:
        return f"it could not start within {rules.deadline_s:g} s"
    latest = max(rules.latest_at(pending), cursor.planned.start_at if cursor.planned else 0.0)
    too_late = rules.catch_up == "none" and now - latest > ON_TIME_S
    if tries >= _MAX_TRIES or (tries and too_late):
        return f"a process was started for it {tries} times and never began; its log may say why"
    return _ABSENT if too_late else None


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
            fields = "1 field" if count == 1 else f"{count} fields"
            raise UsageError(
                f"{text!r} is not a cron expression: it has {fields}, not {len(_FIELDS)}; "
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
