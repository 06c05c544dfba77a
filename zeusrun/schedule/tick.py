"""What happens every minute: start due occurrences, and report how earlier ones ended."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from zeusrun.clock import read_clock, timestamp
from zeusrun.errors import BusyError, ExitCode, LaunchError, ZeusrunError
from zeusrun.files.private import write_file
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.schedule.due import PERIOD_S, find_due
from zeusrun.schedule.occurrence import is_dead, start_occurrence
from zeusrun.schedule.store import UNDERWAY, Occurrence

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from zeusrun.launcher.processes.programs import Detached
    from zeusrun.schedule.store import Schedule, Schedules

_DAY_S = 86400.0
_POLL_S = 0.2  # the daemon handles a signal within this time


def run_daemon(
    schedules: Schedules, show: Callable[[str], None], then: Callable[[], None] = lambda: None
) -> int:
    """Start due jobs every minute until a signal comes; then end what runs; return the signal.

    ``show`` prints a sentence; ``then`` is called after each minute's start. ``BusyError`` if a
    daemon runs already.
    """
    lock = schedules.lock(".daemon.lock")
    if not lock.acquire():
        raise BusyError(f"a daemon already runs these schedules ({schedules.directory})")
    running: list[tuple[Schedule, Detached]] = []
    try:
        with CaughtSignals() as signals:
            while not signals.received:
                now = read_clock()
                begun = {(each.job, each.cursor.pending) for each, _ in running}
                for schedule, process in start_due(schedules, now, show, begun):
                    _show_start(schedules, schedule, now, show)
                    running.append((schedule, process))
                then()
                next_t = time.monotonic() + PERIOD_S - now % PERIOD_S
                while True:
                    running = [each for each in running if not _has_ended(schedules, *each, show)]
                    if signals.received or time.monotonic() >= next_t:
                        break
                    time.sleep(_POLL_S)
            for _, process in running:
                process.send_signal(signal.SIGTERM)  # preempted: the next run continues it
            for schedule, process in running:
                process.wait()
                _has_ended(schedules, schedule, process, show)
            return signals.received[0]
    finally:
        with contextlib.suppress(OSError):
            schedules.heartbeat.unlink(missing_ok=True)  # nothing runs the schedules any more
        lock.release()


def _show_start(
    schedules: Schedules, schedule: Schedule, now: float, show: Callable[[str], None]
) -> None:
    planned = schedule.cursor.planned
    if planned is None or planned.holds(now):  # else its start is only decided anew
        what = "is due" if planned is None and schedule.rules.may_defer else "has started"
        show(f"{schedule.job} {what}; its output is in {schedules.log(schedule.job)}")


def _has_ended(
    schedules: Schedules, schedule: Schedule, process: Detached, show: Callable[[str], None]
) -> bool:
    code = process.poll()
    if code is None:
        return False
    start, pending = None, schedule.cursor.pending
    with contextlib.suppress(ZeusrunError):  # it may have been removed
        found = schedules.read(schedule.job)
        start = found.describe_start() if found.cursor.pending == pending else None
    if start is None:
        show(f"{schedule.job} has ended with exit code {code}")
    elif start != schedule.describe_start():
        show(f"{schedule.job} starts {start}")
    return True


def start_due(
    schedules: Schedules,
    now: float,
    show: Callable[[str], None],
    begun: Collection[tuple[str, float | None]] = (),
) -> list[tuple[Schedule, Detached]]:
    """Start what is due, each in a process of its own; return the processes.

    ``begun``: jobs and occurrences whose processes run. A process may need more than a minute
    before it takes the lock of its occurrence.
    """
    ticked = tick(schedules, now, begun)
    started = []
    for schedule, occurrence in ticked.due:
        try:
            started.append((schedule, start_occurrence(schedules, schedule, occurrence)))
        except LaunchError as error:  # the other jobs still run
            with contextlib.suppress(ZeusrunError):
                schedules.update(schedule.job, partial(_uncount_try, occurrence))
            for text in _once_a_day(schedules, str(error), now):
                show(text)
    for text in ticked.messages:
        show(text)
    return started


def _uncount_try(occurrence: float, schedule: Schedule) -> Schedule:
    """Return a schedule without the last try, because no process could be started."""
    cursor = schedule.cursor
    if cursor.pending != occurrence:
        return schedule
    return replace(schedule, cursor=replace(cursor, tries=max(0, cursor.tries - 1)))


@dataclass(frozen=True)
class Ticked:
    """What a tick found."""

    due: tuple[tuple[Schedule, float], ...]  # to start, each with its occurrence
    messages: tuple[str, ...]  # for the user: cron mails them; the next tick does not repeat them


def tick(
    schedules: Schedules, now: float, begun: Collection[tuple[str, float | None]] = ()
) -> Ticked:
    """Decide what is due at a Unix second; the decisions are on disk when this returns."""
    with contextlib.suppress(OSError):  # the folder is missing while nothing is scheduled
        write_file(schedules.heartbeat, b"")
    due: list[tuple[Schedule, float]] = []
    messages: list[str] = []
    for job in schedules.jobs():
        try:
            with schedules.hold(job) as found:
                if found is None:
                    continue  # it has just been removed
                dead = partial(_is_dead, schedules, job, begun)
                schedule, occurrence, ended = _decide(found, now, dead)
                if schedule != found:
                    schedules.write(schedule)
            if occurrence is not None:  # the decision is on disk
                due.append((schedule, occurrence))
            messages += _describe_endings(schedules, schedule, ended)
        except ZeusrunError as error:
            messages += _once_a_day(schedules, str(error), now)
    return Ticked(tuple(due), tuple(messages))


def _is_dead(
    schedules: Schedules, job: str, begun: Collection[tuple[str, float | None]], occurrence: float
) -> bool:
    return (job, occurrence) not in begun and is_dead(schedules, job, occurrence)


def _once_a_day(schedules: Schedules, text: str, now: float) -> list[str]:
    """Return a sentence at most once a day, because cron mails everything that a tick prints."""
    name = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
    path = schedules.directory / f".told-{name}"
    with contextlib.suppress(OSError):
        for old in schedules.directory.glob(".told-*"):
            if now - old.stat().st_mtime > _DAY_S:
                old.unlink()
        if path.exists():
            return []
        write_file(path, text.encode(errors="replace"))
    return [text]


def _decide(
    schedule: Schedule, now: float, is_dead: Callable[[float], bool]
) -> tuple[Schedule, float | None, list[Occurrence]]:
    """Return the schedule after a tick, what to start a process for, and what to report. Pure.

    ``is_dead`` says whether the process of an occurrence has ended.
    """
    at, start = timestamp(now), None
    for each in schedule.firings:
        if each.result in UNDERWAY and is_dead(each.occurrence):
            schedule = schedule.note(replace(each, result="lost", at=at, why="its zeusrun died"))
    if not schedule.paused:
        cursor, missed = find_due(schedule.rules, schedule.cursor, now)
        if cursor.until < schedule.cursor.until:  # the clock was ahead: forget what it has missed
            kept = (e for e in schedule.firings if e.result != "missed" or e.occurrence <= now)
            schedule = replace(schedule, firings=tuple(kept))
        # After the clock was wrong for a while, an occurrence that was decided may be due again.
        decided = {each.occurrence for each in schedule.firings}
        if cursor.pending in decided:
            cursor = replace(cursor, pending=None)
        for occurrence in sorted(missed.keys() - decided):
            why = missed[occurrence]
            schedule = schedule.note(Occurrence(occurrence, "missed", at, why=why))
        pending, soon = cursor.pending, cursor.begins_at(schedule.rules, now) < now + PERIOD_S
        if pending is not None and soon and is_dead(pending):
            start, cursor = pending, replace(cursor, tries=cursor.tries + 1)
        schedule = replace(schedule, cursor=cursor)
    ended = [e for e in schedule.firings if not e.told and e.result not in UNDERWAY]
    told = (replace(e, told=e.result not in UNDERWAY) for e in schedule.firings)
    return replace(schedule, firings=tuple(told)), start, ended


def _describe_endings(
    schedules: Schedules, schedule: Schedule, ended: Sequence[Occurrence]
) -> list[str]:
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
