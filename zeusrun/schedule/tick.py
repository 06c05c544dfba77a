"""What happens every minute: occurrences that are due are started, and what became of them told."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from zeusrun.clock import timestamp
from zeusrun.errors import ExitCode, LaunchError, ZeusrunError
from zeusrun.files.private import write_file
from zeusrun.schedule.due import look
from zeusrun.schedule.occurrence import PERIOD_S, is_dead, start_occurrence
from zeusrun.schedule.store import UNDERWAY, Occurrence

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from zeusrun.launcher.processes.background import Detached
    from zeusrun.schedule.store import Schedule, Schedules

_DAY_S = 86400.0


@dataclass(frozen=True)
class Ticked:
    """What a tick found.

    Attributes:
        due: What is to be started, with the occurrence.
        told: Sentences for whoever looks after the machine.
        untold: By job, the occurrences that they are about: to be marked once they are printed.
    """

    due: tuple[tuple[Schedule, float], ...]
    told: tuple[str, ...]
    untold: Mapping[str, frozenset[float]]


def start_due(
    schedules: Schedules, now: float, tell: Callable[[str], None]
) -> list[tuple[Schedule, Detached]]:
    """Start what is due, each in a process of its own; return those.

    Args:
        schedules: Of the user.
        now: Unix seconds.
        tell: Takes sentences for whoever looks after the machine.
    """
    ticked = tick(schedules, now)
    started = []
    for schedule, occurrence in ticked.due:
        try:
            started.append((schedule, start_occurrence(schedules, schedule, occurrence)))
        except LaunchError as error:  # the others are to run all the same
            with contextlib.suppress(ZeusrunError):
                schedules.update(schedule.job, partial(_take_back, occurrence))
            for text in _seldom(schedules, str(error), now):
                tell(text)
    for text in ticked.told:
        tell(text)
    # Not before: a look that is killed in between is to tell twice rather than never.
    for job, occurrences in ticked.untold.items():
        with contextlib.suppress(ZeusrunError):  # removed meanwhile, or a full disk: told again
            schedules.update(job, partial(_mark_told, occurrences))
    return started


def _mark_told(occurrences: Collection[float], schedule: Schedule) -> Schedule:
    firings = (
        replace(each, told=each.told or each.occurrence in occurrences) for each in schedule.firings
    )
    return replace(schedule, firings=tuple(firings))


def _take_back(occurrence: float, schedule: Schedule) -> Schedule:
    """Return a schedule for whose occurrence no process could be started."""
    cursor = schedule.cursor
    if cursor.pending != occurrence:
        return schedule
    return replace(schedule, cursor=replace(cursor, tries=max(0, cursor.tries - 1)))


def tick(schedules: Schedules, now: float) -> Ticked:
    """Decide what is due; all of that is on disk when it returns.

    Args:
        schedules: Of the user.
        now: Unix seconds.
    """
    with contextlib.suppress(OSError):  # where nothing is scheduled yet, there is no folder
        write_file(schedules.heartbeat, b"")
    due: list[tuple[Schedule, float]] = []
    told: list[str] = []
    untold: dict[str, frozenset[float]] = {}
    for job in schedules.jobs():
        try:
            with schedules.hold(job) as held:
                if held.schedule is None:
                    continue  # it has just been removed
                schedule = _decide(schedules, held.schedule, now)
                occurrence = _to_start(schedules, schedule, now)
                if occurrence is not None:
                    cursor = replace(schedule.cursor, tries=schedule.cursor.tries + 1)
                    schedule = replace(schedule, cursor=cursor)
                    due.append((schedule, occurrence))
                held.write(schedule)
            if settled := [each for each in schedule.firings if _is_untold(each)]:
                told += _sentences(schedules, schedule, settled)
                untold[job] = frozenset(each.occurrence for each in settled)
        except ZeusrunError as error:
            due = [each for each in due if each[0].job != job]  # decided, but not on disk
            told += _seldom(schedules, str(error), now)
    return Ticked(tuple(due), tuple(told), untold)


def _to_start(schedules: Schedules, schedule: Schedule, now: float) -> float | None:
    """Return the occurrence that a process is to be started for; ``None`` if there is none."""
    pending = schedule.cursor.pending
    if pending is None or schedule.paused or schedule.rules.start_at(pending) >= now + PERIOD_S:
        return None
    return pending if is_dead(schedules, schedule.job, pending) else None  # else one is at it


def _seldom(schedules: Schedules, text: str, now: float) -> list[str]:
    """Return a sentence that is true for long once a day, not every minute."""
    name = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
    path = schedules.directory / f".told-{name}"
    with contextlib.suppress(OSError):
        if now - path.stat().st_mtime < _DAY_S:
            return []
    with contextlib.suppress(OSError):
        for old in schedules.directory.glob(".told-*"):
            if now - old.stat().st_mtime > _DAY_S:
                old.unlink(missing_ok=True)
        write_file(path, text.encode(errors="replace"))
    return [text]


def _decide(schedules: Schedules, schedule: Schedule, now: float) -> Schedule:
    at = timestamp(now)
    for firing in schedule.firings:
        if firing.result in UNDERWAY and is_dead(schedules, schedule.job, firing.occurrence):
            schedule = schedule.note(replace(firing, result="lost", at=at, why="its zeusrun died"))
    if not schedule.paused:
        found = look(schedule.rules, schedule.cursor, now)
        if found.cursor.until < schedule.cursor.until:
            schedule = schedule.forget_after(now)
        # A clock that was wrong for a while may show what was decided long ago again.
        decided = {firing.occurrence for firing in schedule.firings}
        again = found.cursor.pending in decided
        cursor = replace(found.cursor, pending=None) if again else found.cursor
        schedule = replace(schedule, cursor=cursor)
        for missed in found.missed:
            if missed.occurrence not in decided:
                schedule = schedule.note(
                    Occurrence(missed.occurrence, "missed", at, why=missed.why)
                )
    return schedule


def _is_untold(firing: Occurrence) -> bool:
    return not firing.told and firing.result not in UNDERWAY


def _sentences(schedules: Schedules, schedule: Schedule, untold: Sequence[Occurrence]) -> list[str]:
    """Return a sentence on each occurrence that did not go well; one on all that were missed."""
    log = schedules.log(schedule.job)
    told = []
    missed = [firing for firing in untold if firing.result == "missed"]
    if missed:
        first, last = (_when(schedule, each.occurrence) for each in (missed[0], missed[-1]))
        times = first if len(missed) == 1 else f"{len(missed)} times from {first} to {last}"
        told.append(f"{schedule.job} did not run {times}: {missed[-1].why}")
    for firing in untold:
        if firing.exit_code == ExitCode.REACHED:
            continue
        when = _when(schedule, firing.occurrence)
        if firing.result == "skipped":
            told.append(f"{schedule.job} did not run {when}: {firing.why}")
        elif firing.result != "missed":
            told.append(f"{schedule.job}, run of {when}: {firing.describe()}; see {log}")
    return told


def _when(schedule: Schedule, occurrence: float) -> str:
    return f"{schedule.rules.timetable.local(occurrence):%Y-%m-%d %H:%M}"
