"""What happens every minute: start due occurrences, and report how earlier ones ended."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from zeusrun.clock import timestamp
from zeusrun.errors import ExitCode, LaunchError, ZeusrunError
from zeusrun.files.private import write_file
from zeusrun.schedule.due import find_due
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
        due: Schedules to start, each with its occurrence.
        messages: Sentences for the user, which cron mails.
        reported: Occurrences by job that ``messages`` are about: mark them after printing.
    """

    due: tuple[tuple[Schedule, float], ...]
    messages: tuple[str, ...]
    reported: Mapping[str, frozenset[float]]


def start_due(
    schedules: Schedules, now: float, tell: Callable[[str], None]
) -> list[tuple[Schedule, Detached]]:
    """Start what is due, each in a process of its own; return the processes.

    Args:
        schedules: Schedules of the user.
        now: Unix seconds.
        tell: Prints a sentence for the user.
    """
    ticked = tick(schedules, now)
    started = []
    for schedule, occurrence in ticked.due:
        try:
            started.append((schedule, start_occurrence(schedules, schedule, occurrence)))
        except LaunchError as error:  # the other jobs still run
            with contextlib.suppress(ZeusrunError):
                schedules.update(schedule.job, partial(_take_back, occurrence))
            for text in _seldom(schedules, str(error), now):
                tell(text)
    for text in ticked.messages:
        tell(text)
    # Only after printing: a tick that is killed in between reports twice rather than never.
    for job, occurrences in ticked.reported.items():
        with contextlib.suppress(ZeusrunError):  # removed meanwhile, or a full disk: report again
            schedules.update(job, partial(_mark_reported, occurrences))
    return started


def _mark_reported(occurrences: Collection[float], schedule: Schedule) -> Schedule:
    firings = (
        replace(each, told=each.told or each.occurrence in occurrences) for each in schedule.firings
    )
    return replace(schedule, firings=tuple(firings))


def _take_back(occurrence: float, schedule: Schedule) -> Schedule:
    """Return a schedule without the try, because no process could be started."""
    cursor = schedule.cursor
    if cursor.pending != occurrence:
        return schedule
    return replace(schedule, cursor=replace(cursor, tries=max(0, cursor.tries - 1)))


def tick(schedules: Schedules, now: float) -> Ticked:
    """Decide what is due; the decisions are on disk when this returns.

    Args:
        schedules: Schedules of the user.
        now: Unix seconds.
    """
    with contextlib.suppress(OSError):  # the folder is missing while nothing is scheduled
        write_file(schedules.heartbeat, b"")
    due: list[tuple[Schedule, float]] = []
    messages: list[str] = []
    reported: dict[str, frozenset[float]] = {}
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
            if ended := [each for each in schedule.firings if _is_unreported(each)]:
                messages += _sentences(schedules, schedule, ended)
                reported[job] = frozenset(each.occurrence for each in ended)
        except ZeusrunError as error:
            due = [each for each in due if each[0].job != job]  # decided, but not on disk
            messages += _seldom(schedules, str(error), now)
    return Ticked(tuple(due), tuple(messages), reported)


def _to_start(schedules: Schedules, schedule: Schedule, now: float) -> float | None:
    """Return the occurrence to start a process for; ``None`` if there is none."""
    pending = schedule.cursor.pending
    if pending is None or schedule.paused or schedule.rules.start_at(pending) >= now + PERIOD_S:
        return None
    return (
        pending if is_dead(schedules, schedule.job, pending) else None
    )  # otherwise its process is alive


def _seldom(schedules: Schedules, text: str, now: float) -> list[str]:
    """Return a sentence that stays true for long once a day, not every minute."""
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
    for each in schedule.firings:
        if each.result in UNDERWAY and is_dead(schedules, schedule.job, each.occurrence):
            schedule = schedule.note(replace(each, result="lost", at=at, why="its zeusrun died"))
    if not schedule.paused:
        found = find_due(schedule.rules, schedule.cursor, now)
        if found.cursor.until < schedule.cursor.until:
            schedule = schedule.forget_after(now)
        # After the clock was wrong for a while, an occurrence that was decided may be due again.
        decided = {each.occurrence for each in schedule.firings}
        again = found.cursor.pending in decided
        cursor = replace(found.cursor, pending=None) if again else found.cursor
        schedule = replace(schedule, cursor=cursor)
        for missed in found.missed:
            if missed.occurrence not in decided:
                schedule = schedule.note(
                    Occurrence(missed.occurrence, "missed", at, why=missed.why)
                )
    return schedule


def _is_unreported(occurrence: Occurrence) -> bool:
    return not occurrence.told and occurrence.result not in UNDERWAY


def _sentences(schedules: Schedules, schedule: Schedule, ended: Sequence[Occurrence]) -> list[str]:
    """Return a sentence on each occurrence that did not succeed; one for all that were missed."""
    log = schedules.log(schedule.job)
    sentences = []
    missed = [each for each in ended if each.result == "missed"]
    if missed:
        first, last = (_when(schedule, each.occurrence) for each in (missed[0], missed[-1]))
        times = first if len(missed) == 1 else f"{len(missed)} times from {first} to {last}"
        sentences.append(f"{schedule.job} did not run {times}: {missed[-1].why}")
    for each in ended:
        if each.exit_code == ExitCode.REACHED:
            continue
        when = _when(schedule, each.occurrence)
        if each.result == "skipped":
            sentences.append(f"{schedule.job} did not run {when}: {each.why}")
        elif each.result != "missed":
            sentences.append(f"{schedule.job}, run of {when}: {each.describe()}; see {log}")
    return sentences


def _when(schedule: Schedule, occurrence: float) -> str:
    return f"{schedule.rules.timetable.local(occurrence):%Y-%m-%d %H:%M}"
