"""Which occurrences are due at a tick. Pure: from a timetable, the last tick and the time.

cron, a systemd timer or the daemon runs a tick about once a minute. Ticks may be late or missing
for days, and the clock may have been set. Every occurrence is decided exactly once: it is started,
or missed for a reason.
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

SET_BACK_S = 3 * 3600.0
"""A clock that is set back by less, as for daylight saving, repeats nothing; see cron(8)."""

_NO_CLOCK = 1_735_689_600.0  # 2025: a correct clock is later than this
_ABSENT = "nothing ran that could start it"
_MOST_TRIES = 5
_MOST = 100  # missed occurrences that are recorded one by one


@dataclass(frozen=True)
class Rules:
    """How a job recurs.

    Attributes:
        timetable: When.
        catch_up: What happens with occurrences while no tick ran: ``none`` leaves them, ``once``
            runs the newest one at the next tick.
        jitter_s: An occurrence starts up to this many seconds late, always the same for a key.
        deadline_s: An occurrence not started within this many seconds is missed; ``None`` for no
            bound.
        key: Spreads the jobs of a machine over the jitter.
    """

    timetable: Timetable
    catch_up: CatchUp = "none"
    jitter_s: float = 0.0
    deadline_s: float | None = None
    key: str = ""

    def start_at(self, occurrence: float) -> float:
        """Return when to start an occurrence, in Unix seconds."""
        digest = hashlib.sha256(f"{self.key}@{occurrence:.0f}".encode()).digest()
        return occurrence + self.jitter_s * int.from_bytes(digest[:4], "big") / 2**32


@dataclass(frozen=True)
class Cursor:
    """Up to when the occurrences have been decided.

    Attributes:
        until: All occurrences up to here are decided; Unix seconds.
        pending: The occurrence to start, which has not begun; ``None`` for none.
        tries: How often a process has been started for it.
    """

    until: float
    pending: float | None = None
    tries: int = 0


@dataclass(frozen=True)
class Missed:
    """An occurrence that was not started, and why."""

    occurrence: float
    why: str


@dataclass(frozen=True)
class Due:
    """What a tick finds.

    Attributes:
        cursor: To be stored before anything is started.
        missed: Occurrences that are not started.
    """

    cursor: Cursor
    missed: tuple[Missed, ...] = ()


def find_due(rules: Rules, cursor: Cursor, now: float) -> Due:
    """Decide the occurrences since the last tick.

    Args:
        rules: Rules of the schedule.
        cursor: As the last tick left it.
        now: Unix seconds.
    """
    if now < _NO_CLOCK:  # at boot, before the time is known
        return Due(cursor)
    if cursor.until - now > SET_BACK_S:  # the clock was ahead when ``until`` was written
        cursor = Cursor(now)
    due = rules.timetable.between(cursor.until, now, _MOST)
    missed: list[Missed] = []
    pending = cursor.pending
    for occurrence in due:
        why = _too_late(rules, occurrence, now)
        if why is not None:
            missed.append(Missed(occurrence, why))
            continue
        if pending is not None:
            missed.append(Missed(pending, "the next one was due before it could start"))
        pending = occurrence
    tries = cursor.tries if pending == cursor.pending else 0
    why = None if pending is None else why_missed(rules, pending, now, tries)
    if pending is not None and why is not None:
        missed.append(Missed(pending, why))
        pending = None
    return Due(Cursor(max(cursor.until, now), pending, tries), tuple(missed))


def _too_late(rules: Rules, occurrence: float, now: float) -> str | None:
    late_s = now - occurrence
    if late_s <= ON_TIME_S:
        return None
    if rules.catch_up == "none":
        return _ABSENT
    if _expired(rules, occurrence, now):
        return f"{_ABSENT} within {rules.deadline_s:g} s"
    return None


def why_missed(rules: Rules, pending: float, now: float, tries: int = 0) -> str | None:
    """Return why a pending occurrence must not start any more; ``None`` if it may start.

    Args:
        rules: Rules of the schedule.
        pending: The occurrence.
        now: Unix seconds.
        tries: How often a process has been started for it.
    """
    if _expired(rules, pending, now):
        return f"it could not start within {rules.deadline_s:g} s"
    too_old = _too_old(rules, pending, now)
    if tries >= _MOST_TRIES or (tries and too_old):
        return f"a process was started for it {tries} times and never began; its log may say why"
    return _ABSENT if too_old else None


def _too_old(rules: Rules, pending: float, now: float) -> bool:
    """Whether a pending occurrence is too late, for example because the machine was off."""
    return rules.catch_up == "none" and now - rules.start_at(pending) > ON_TIME_S


def _expired(rules: Rules, occurrence: float, now: float) -> bool:
    return rules.deadline_s is not None and now - occurrence > rules.deadline_s
