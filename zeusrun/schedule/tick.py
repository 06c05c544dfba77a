"""What happens every minute: start due occurrences, and report how earlier ones ended."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from zeusrun.clock import read_clock, timestamp
from zeusrun.errors import BusyError, ExitCode, LaunchError, ZeusrunError
from zeusrun.files.private import write_file
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.schedule.due import PERIOD_S, find_due
from zeusrun.schedule.occurrence import is_dead, start_occurrence, take
from zeusrun.schedule.store import UNDERWAY, Occurrence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.files.lock import FileLock
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
                for schedule, process in start_due(schedules, now, show):
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
    schedules: Schedules, now: float, show: Callable[[str], None]
) -> list[tuple[Schedule, Detached]]:
    """Start what is due, each in a process of its own; return the processes."""
    started: list[tuple[Schedule, Detached]] = []

    def start(schedule: Schedule, occurrence: float, lock: FileLock) -> None:
        try:
            started.append((schedule, start_occurrence(schedules, schedule, occurrence, lock)))
        except LaunchError as error:  # the other jobs still run
            with contextlib.suppress(ZeusrunError):
                schedules.update(schedule.job, partial(_count_try, occurrence, -1))
            for text in _once_a_day(schedules, str(error), now):
                show(text)

    for text in tick(schedules, now, start):
        show(text)
    return started


def _count_try(occurrence: float, tries: int, schedule: Schedule) -> Schedule:
    """Return a schedule with ``tries`` more tries to start its occurrence; they may be negative."""
    cursor = schedule.cursor
    if cursor.pending != occurrence:
        return schedule
    return replace(schedule, cursor=replace(cursor, tries=max(0, cursor.tries + tries)))


def tick(
    schedules: Schedules, now: float, start: Callable[[Schedule, float, FileLock], None]
) -> list[str]:
    """Decide what is due at a Unix second, and start it.

    ``start`` gets a schedule, its occurrence and the lock of that, for the process to inherit: a
    tick at the same time finds it taken. The decision is on disk by then.

    Returns:
        Sentences for the user: cron mails them; the next tick does not repeat them.
    """
    with contextlib.suppress(OSError):  # the folder is missing while nothing is scheduled
        write_file(schedules.heartbeat, b"")
    messages: list[str] = []
    for job in schedules.jobs():
        try:
            with contextlib.ExitStack() as taken:
                with schedules.hold(job) as found:
                    if found is None:
                        continue  # it has just been removed
                    dead = partial(is_dead, schedules, job)
                    schedule, due, ended = _decide(found, now, dead)
                    given_up = found.cursor.pending
                    if given_up is not None and given_up != schedule.cursor.pending:
                        dead(given_up)  # removes the lock that no process took
                    lock = None if due is None else take(schedules, job, due)
                    if due is not None and lock is not None:
                        taken.enter_context(lock)
                        schedule = _count_try(due, 1, schedule)
                    if schedule != found:
                        schedules.write(schedule)
                if due is not None and lock is not None:
                    start(schedule, due, lock)
            messages += _describe_endings(schedules, schedule, ended)
        except ZeusrunError as error:
            messages += _once_a_day(schedules, str(error), now)
    return messages


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
    """Return the schedule after a tick, what needs a process, and what to report. Pure.

    ``is_dead`` says whether the process of an occurrence that has begun has ended.
    """
    at, due = timestamp(now), None
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
        if cursor.begins_at(schedule.rules, now) < now + PERIOD_S:
            due = cursor.pending
        schedule = replace(schedule, cursor=cursor)
    ended = [e for e in schedule.firings if not e.told and e.result not in UNDERWAY]
    told = (replace(e, told=e.result not in UNDERWAY) for e in schedule.firings)
    return replace(schedule, firings=tuple(told)), due, ended


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
