"""What happens every minute: starts due occurrences, and reports how earlier ones ended.

Each occurrence runs in a process of its own, which records how it ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import signal
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from zeusrun.clock import read_clock, timestamp
from zeusrun.errors import BusyError, ExitCode, LaunchError, UsageError, ZeusrunError, advice_on
from zeusrun.files.lock import FileLock
from zeusrun.files.private import open_log, write_file
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.schedule.due import PERIOD_S, Cursor, PlannedStart, find_due, why_missed
from zeusrun.schedule.store import UNDERWAY, Occurrence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from zeusrun.launcher.processes.programs import Detached
    from zeusrun.schedule.store import Schedule, Schedules

_Start: TypeAlias = "Callable[[Schedules, Schedule, float, FileLock], Detached]"
_Run: TypeAlias = "Callable[[Schedule, Callable[[], None]], int]"
_DAY_S = 86400.0
_POLL_S = 0.2  # the daemon handles a signal within this time
_MAX_DEATHS = 2  # of processes that decide a start; after that, it starts without a decision


def start_occurrence(
    schedules: Schedules, schedule: Schedule, occurrence: float, lock: FileLock
) -> Detached:
    """Start a due occurrence with its output in the job's log, or raise a ``LaunchError``.

    The process inherits the lock of the occurrence, which ``take`` returned.
    """
    from zeusrun.launcher.processes.programs import start_detached  # noqa: PLC0415 - most ticks start nothing

    try:
        with open(open_log(schedules.log(schedule.job)), "ab") as log:  # noqa: PTH123 - a descriptor
            verb = [schedule.python, "-m", "zeusrun", "schedule", "fire"]
            argv = [*verb, schedule.job, f"{occurrence:.3f}", str(lock.fileno())]
            environment = environment_of(schedules, schedule)
            return start_detached(argv, environment, log.fileno(), [lock.fileno()])
    except ValueError as error:  # a variable that no process can have
        raise LaunchError(f"{schedule.job} cannot be started: {error}; add it again") from error
    except OSError as error:
        add = f"`zeusrun schedule add {shlex.quote(schedule.job_file)}`"
        advice = advice_on(error, f"{add} with a zeusrun that works sets it up again")
        raise LaunchError(
            f"{schedule.job} cannot be started: {error.filename}: {error.strerror}; {advice}"
        ) from error


def environment_of(schedules: Schedules, schedule: Schedule) -> dict[str, str]:
    """Return the whole environment of the runs of a schedule."""
    return {**schedule.environment, "ZEUSRUN_HOME": str(schedules.directory.parent)}


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
    running: list[Detached] = []
    try:
        with CaughtSignals() as signals:
            while not signals.received:
                now = read_clock()
                for schedule, process in start_due(schedules, now, show):
                    log = schedules.log(schedule.job)
                    show(f"started a submit of {schedule.job}; its output is in {log}")
                    running.append(process)
                then()
                next_t = time.monotonic() + PERIOD_S - now % PERIOD_S
                while not signals.received and time.monotonic() < next_t:
                    running = [process for process in running if process.poll() is None]
                    time.sleep(_POLL_S)
            for process in running:
                process.send_signal(signal.SIGTERM)  # preempted: the next run continues it
            for process in running:
                process.wait()
            return signals.received[0]
    finally:
        with contextlib.suppress(OSError):
            schedules.heartbeat.unlink(missing_ok=True)  # nothing runs the schedules any more
        lock.release()


def start_due(
    schedules: Schedules, now: float, show: Callable[[str], None], start: _Start = start_occurrence
) -> list[tuple[Schedule, Detached]]:
    """Decide what is due at a Unix second, and start it; return the processes.

    ``show`` gets sentences for the user: cron mails them; the next tick does not repeat them. All
    jobs are started before it is called, because it may fail, for example on a full disk.
    """
    with contextlib.suppress(OSError):  # the folder is missing while nothing is scheduled
        write_file(schedules.heartbeat, b"")
    started: list[tuple[Schedule, Detached]] = []
    told: list[str] = []
    for job in schedules.jobs():
        try:
            started += _start_job(schedules, job, now, told, start)
        except ZeusrunError as error:  # the other jobs still run
            told += _once_a_day(schedules, str(error), now)
    for text in told:
        show(text)
    return started


def _start_job(
    schedules: Schedules, job: str, now: float, told: list[str], start: _Start
) -> Iterator[tuple[Schedule, Detached]]:
    """Start the occurrence of a job that is due; the decision is on disk by then.

    ``start`` gets its lock, for the process to inherit: a tick at the same time finds it taken.
    """
    with contextlib.ExitStack() as taken:
        with schedules.hold(job) as found:
            if found is None:
                return  # it has just been removed
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
        told += _describe_endings(schedules, schedule, ended)
        if due is not None and lock is not None:
            try:
                yield schedule, start(schedules, schedule, due, lock)
            except LaunchError:
                with contextlib.suppress(ZeusrunError):
                    schedules.update(job, partial(_count_try, due, -1))
                raise


def _count_try(occurrence: float, tries: int, schedule: Schedule) -> Schedule:
    """Return a schedule with ``tries`` more tries to start its occurrence; they may be negative."""
    cursor = schedule.cursor
    if cursor.pending != occurrence:
        return schedule
    return replace(schedule, cursor=replace(cursor, tries=max(0, cursor.tries + tries)))


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


def fire(schedules: Schedules, job: str, occurrence: float, lock: FileLock, run: _Run) -> int:
    """Run an occurrence, in Unix seconds, unless it has begun; record and return its exit code.

    If it may be deferred, decide its start first. If that is not within the next minute, store it
    and return: the tick starts another process then.

    ``lock`` is that of the occurrence; it is held, and released at the end. ``run`` calls its
    second argument when the job begins, and returns the exit code; a ``BusyError`` of it means that
    the occurrence was skipped.
    """
    try:
        # If this process dies before the claim, the next tick starts another one.
        wait_s = _begins_at(schedules, job, occurrence) - read_clock()
        if wait_s >= PERIOD_S:
            return ExitCode.BUSY
        time.sleep(max(0.0, wait_s))
        with CaughtSignals():  # from here on, a signal ends the run, and the end is recorded
            schedule = _claim(schedules, job, occurrence)
            return ExitCode.BUSY if schedule is None else _run(schedules, schedule, occurrence, run)
    finally:
        with contextlib.suppress(OSError):
            lock.path.unlink(missing_ok=True)
        lock.release()


def _begins_at(schedules: Schedules, job: str, occurrence: float) -> float:
    """Return when to start an occurrence; if it may be deferred, decide and store it."""
    schedule, now = schedules.read(job), read_clock()
    rules, planned = schedule.rules, schedule.cursor.planned
    if not rules.may_defer or schedule.cursor.pending != occurrence:
        return occurrence
    if planned is not None and planned.holds(now) and planned.start_at < now + PERIOD_S:
        return planned.start_at
    if schedule.cursor.tries > _MAX_DEATHS:
        why = "the processes that were to decide its start died"
        decided = PlannedStart(max(now, occurrence), now, why)
    else:
        from zeusrun.schedule import deferral  # noqa: PLC0415 - imports numpy

        home = schedules.directory.parent
        decided = deferral.decide_start(schedule, occurrence, now, home, os.environ)

    def store(found: Schedule) -> Schedule:
        cursor = found.cursor
        if cursor.pending != occurrence or found.rules != rules:
            return found  # the schedule was changed meanwhile
        deferred = decided.start_at >= now + PERIOD_S  # then this process has done its work
        tries = 0 if deferred else cursor.tries
        return replace(found, cursor=replace(cursor, planned=decided, tries=tries))

    schedules.update(job, store)
    return decided.start_at


def _claim(schedules: Schedules, job: str, occurrence: float) -> Schedule | None:
    """Mark an occurrence as begun; ``None`` if it must not run or has begun."""
    at = timestamp()
    with schedules.hold(job) as found:
        schedule = found or schedules.read(job)
        cursor, planned = schedule.cursor, schedule.cursor.planned
        if schedule.paused or cursor.pending != occurrence:
            return None
        timetable = schedule.rules.timetable
        start = None if planned is None else planned.describe(timetable, occurrence)
        schedule = replace(schedule, cursor=Cursor(cursor.until))
        # The machine may have been asleep since the tick.
        late = why_missed(schedule.rules, replace(cursor, tries=0), read_clock())
        if late is not None:
            schedules.write(schedule.note(Occurrence(occurrence, "missed", at, why=late)))
            return None
        return schedules.write(schedule.note(Occurrence(occurrence, "waiting", at, start=start)))


def _run(schedules: Schedules, schedule: Schedule, occurrence: float, run: _Run) -> int:
    start = next(each.start for each in schedule.firings if each.occurrence == occurrence)

    def note(**changes: object) -> None:
        record = Occurrence(occurrence, at=timestamp(), start=start, **changes)  # type: ignore[arg-type]
        # The run continues if the schedule was removed meanwhile, or the disk is full.
        with contextlib.suppress(ZeusrunError):
            schedules.update(schedule.job, lambda found: found.note(record))

    try:
        code = run(schedule, lambda: note(result="running"))
    except ZeusrunError as error:
        result = "skipped" if isinstance(error, BusyError) else "ended"
        note(result=result, exit_code=int(error.exit_code), why=str(error))
        raise
    except BaseException as error:
        note(result="ended", exit_code=int(ExitCode.BUG), why=f"{type(error).__name__}: {error}")
        raise
    note(result="ended", exit_code=code)
    return code


def take(schedules: Schedules, job: str, occurrence: float) -> FileLock | None:
    """Lock an occurrence and return the lock; ``None`` if it is held, or cannot be opened."""
    lock = _lock_of(schedules, job, occurrence)
    with contextlib.suppress(OSError):
        if lock.acquire():
            return lock
    return None


def taken(schedules: Schedules, job: str, occurrence: float, descriptor: int) -> FileLock:
    """Return the lock of an occurrence that this process has inherited, or ``UsageError``."""
    lock = _lock_of(schedules, job, occurrence)
    try:
        lock.inherit(descriptor)
    except (OSError, OverflowError):
        schedules.read(job)  # raises if it was removed meanwhile
        raise UsageError(
            "only a tick can use `zeusrun schedule fire`; `zeusrun schedule run-now` runs a job now"
        ) from None
    return lock


def is_dead(schedules: Schedules, job: str, occurrence: float) -> bool:
    """Whether the process of an occurrence has ended; if so, remove its lock file."""
    lock = take(schedules, job, occurrence)
    if lock is None:
        return False
    with lock, contextlib.suppress(OSError):
        lock.path.unlink(missing_ok=True)
    return True


def _lock_of(schedules: Schedules, job: str, occurrence: float) -> FileLock:
    return FileLock(schedules.directory / f"{job}@{occurrence:.3f}.lock")
