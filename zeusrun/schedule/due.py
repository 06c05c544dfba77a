"""Which occurrence a tick starts, and which are missed. Pure.

cron, a systemd timer or the daemon runs a tick about once a minute. Ticks may be late or missing
for days, and the clock may have been set. Every occurrence is decided exactly once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zeusrun.jobfile.validators import CatchUp
    from zeusrun.schedule.cron_expression import Timetable

ON_TIME_S = 300.0
"""An occurrence that a tick sees within this time is on time: the machine may only be busy."""

_SET_BACK_S = 3 * 3600.0  # a clock set back by less, as for daylight saving, repeats nothing
_NO_CLOCK = 1_735_689_600.0  # 2025: a correct clock is later than this
_ABSENT = "nothing ran that could start it"
_MOST_TRIES = 5
_MOST = 100  # missed occurrences that are recorded one by one


@dataclass(frozen=True)
class Rules:
    """How a job recurs.

    Attributes:
        timetable: When it is due.
        catch_up: Of the occurrences that were due while no tick ran: run none, or the newest once.
        jitter_s: An occurrence starts up to this many seconds late.
        deadline_s: An occurrence not started within this time is missed; ``None`` for no limit.
        key: Jobs with different keys start at different times within the jitter.
    """

    timetable: Timetable
    catch_up: CatchUp = "none"
    jitter_s: float = 0.0
    deadline_s: float | None = None
    key: str = ""

    def start_at(self, occurrence: float) -> float:
        """Return when to start an occurrence, in Unix seconds; always the same for one."""
        digest = hashlib.sha256(f"{self.key}@{occurrence:.0f}".encode()).digest()
        return occurrence + self.jitter_s * int.from_bytes(digest[:4], "big") / 2**32


@dataclass(frozen=True)
class Cursor:
    """Which occurrences have been decided: all up to the Unix second ``until``."""

    until: float
    pending: float | None = None  # the occurrence to start, which has not begun
    tries: int = 0  # how many processes have been started for it


def find_due(rules: Rules, cursor: Cursor, now: float) -> tuple[Cursor, dict[float, str]]:
    """Decide the occurrences since the last tick.

    Store the cursor that it returns before anything is started. It also returns the missed
    occurrences, each with the reason.
    """
    if now < _NO_CLOCK:  # at boot, before the time is known
        return cursor, {}
    if cursor.until - now > _SET_BACK_S:  # the clock was ahead when ``until`` was written
        cursor = Cursor(now)
    due = rules.timetable.between(cursor.until, now, _MOST)
    missed = dict.fromkeys(due[:-1], _ABSENT)
    pending, tries = cursor.pending, cursor.tries
    if due:
        if pending is not None:
            missed[pending] = "the next one was due before it could start"
        pending, tries = due[-1], 0
    if pending is not None and (why := why_missed(rules, pending, now, tries)):
        missed[pending] = why
        pending = None
    return Cursor(max(cursor.until, now), pending, tries), missed


def why_missed(rules: Rules, pending: float, now: float, tries: int = 0) -> str | None:
    """Return why a pending occurrence must not start any more; ``None`` if it may start."""
    if rules.deadline_s is not None and now - pending > rules.deadline_s:
        return f"it could not start within {rules.deadline_s:g} s"
    too_late = rules.catch_up == "none" and now - rules.start_at(pending) > ON_TIME_S
    if tries >= _MOST_TRIES or (tries and too_late):
        return f"a process was started for it {tries} times and never began; its log may say why"
    return _ABSENT if too_late else None
