"""What is due at a tick: pure, from a timetable, what was seen before, and the time.

A tick comes about once a minute, from cron, a systemd timer or the daemon; it may come late, not
for days, or with a clock that was set. Every occurrence is decided exactly once: it is started, or
missed for a reason.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zeusrun.jobfile.validators import CatchUp
    from zeusrun.schedule.cron_expression import Timetable

ON_TIME_S = 300.0
"""An occurrence that is noticed within so many seconds is on time: a busy machine is no absence."""

SET_BACK_S = 3 * 3600.0
"""A clock that goes back by less, as for daylight saving, repeats nothing; see cron(8)."""

_NO_CLOCK = 1_735_689_600.0  # 2025: no clock that is right says less
_NOBODY = "nothing was there to start it"
_MOST_TRIES = 5
_MOST = 100  # missed occurrences that are told one by one


@dataclass(frozen=True)
class Rules:
    """How a job recurs.

    Attributes:
        timetable: When.
        catch_up: What becomes of occurrences that nobody was there for: ``none`` leaves them,
            ``once`` runs the newest one as soon as somebody is.
        jitter_s: An occurrence starts up to so many seconds late, each time the same for a key.
        deadline_s: Not started within so many seconds, it is missed; ``None`` for no bound.
        key: Spreads the jobs of a machine over the jitter.
    """

    timetable: Timetable
    catch_up: CatchUp = "none"
    jitter_s: float = 0.0
    deadline_s: float | None = None
    key: str = ""

    def start_at(self, occurrence: float) -> float:
        """Return when an occurrence is to start, in Unix seconds."""
        digest = hashlib.sha256(f"{self.key}@{occurrence:.0f}".encode()).digest()
        return occurrence + self.jitter_s * int.from_bytes(digest[:4], "big") / 2**32


@dataclass(frozen=True)
class Cursor:
    """How far the occurrences have been decided.

    Attributes:
        until: All occurrences up to here are; Unix seconds.
        pending: The one that is to start, and has not.
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
class Look:
    """What a tick finds.

    Attributes:
        cursor: To be kept before anything is started.
        missed: What will not be started.
    """

    cursor: Cursor
    missed: tuple[Missed, ...] = ()


def look(rules: Rules, cursor: Cursor, now: float) -> Look:
    """Decide the occurrences since the last tick.

    Args:
        rules: Of the schedule.
        cursor: As the last tick left it.
        now: Unix seconds.
    """
    if now < _NO_CLOCK:  # at boot, before the time is known: nothing can be said
        return Look(cursor)
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
            missed.append(Missed(pending, "the next one came before it could start"))
        pending = occurrence
    tries = cursor.tries if pending == cursor.pending else 0
    why = None if pending is None else why_missed(rules, pending, now, tries)
    if pending is not None and why is not None:
        missed.append(Missed(pending, why))
        pending = None
    return Look(Cursor(max(cursor.until, now), pending, tries), tuple(missed))


def _too_late(rules: Rules, occurrence: float, now: float) -> str | None:
    late_s = now - occurrence
    if late_s <= ON_TIME_S:
        return None
    if rules.catch_up == "none":
        return _NOBODY
    if _expired(rules, occurrence, now):
        return f"{_NOBODY} within {rules.deadline_s:g} s"
    return None


def why_missed(rules: Rules, pending: float, now: float, tries: int = 0) -> str | None:
    """Return why an occurrence that was to start is to start no more; ``None`` if it still is.

    Args:
        rules: Of the schedule.
        pending: The occurrence.
        now: Unix seconds.
        tries: How often a process has been started for it.
    """
    if _expired(rules, pending, now):
        return f"it could not start within {rules.deadline_s:g} s"
    forgotten = _forgotten(rules, pending, now)
    if tries >= _MOST_TRIES or (tries and forgotten):
        return f"a process was started for it {tries} times, and never began; its log may say why"
    return _NOBODY if forgotten else None


def _forgotten(rules: Rules, pending: float, now: float) -> bool:
    """Whether one that was about to start did not, for the machine went off, say."""
    return rules.catch_up == "none" and now - rules.start_at(pending) > ON_TIME_S


def _expired(rules: Rules, occurrence: float, now: float) -> bool:
    return rules.deadline_s is not None and now - occurrence > rules.deadline_s
