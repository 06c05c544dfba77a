"""Which occurrence a tick starts, and which are missed. Pure.

cron or the daemon runs a tick about once a minute. Ticks may be late or missing
for days, and the clock may have been set. Every occurrence is decided exactly once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zeusrun.jobfile.validators import CatchUp, StartBy
    from zeusrun.schedule.cron_expression import Timetable

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
