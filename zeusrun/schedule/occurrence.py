"""Runs one occurrence in a process of its own, and records how it ended."""

from __future__ import annotations

import contextlib
import shlex
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.clock import read_clock, timestamp
from zeusrun.errors import BusyError, ExitCode, LaunchError, UsageError, ZeusrunError, advice_on
from zeusrun.files.lock import FileLock
from zeusrun.files.private import open_log
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.schedule.due import PERIOD_S, Cursor, PlannedStart, why_missed
from zeusrun.schedule.store import Occurrence

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.launcher.processes.programs import Detached
    from zeusrun.schedule.store import Schedule, Schedules

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


def fire(
    schedules: Schedules,
    job: str,
    occurrence: float,
    lock: FileLock,
    run: Callable[[Schedule, Callable[[], None]], int],
    *,
    plan: Callable[[Schedule, float], PlannedStart] | None = None,
) -> int:
    """Run an occurrence, unless it has begun; record and return its exit code.

    If it may be deferred, decide its start first. If that is not within the next minute, store it
    and return: the tick starts another process then.

    Args:
        schedules: Schedules of the user.
        job: Name of the job.
        occurrence: The occurrence that a tick has found due, in Unix seconds.
        lock: The held lock of the occurrence; it is released at the end.
        run: Runs the job; calls its second argument when it begins; returns the exit code. A
            ``BusyError`` of it means that the occurrence was skipped.
        plan: Decides at a time, in Unix seconds, when an occurrence that may be deferred starts;
            ``None``: at once.
    """
    try:
        # If this process dies before the claim, the next tick starts another one.
        wait_s = _begins_at(schedules, job, occurrence, plan) - read_clock()
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


def _begins_at(
    schedules: Schedules,
    job: str,
    occurrence: float,
    plan: Callable[[Schedule, float], PlannedStart] | None,
) -> float:
    """Return when to start an occurrence; if it may be deferred, store what ``plan`` decides."""
    schedule, now = schedules.read(job), read_clock()
    rules, planned = schedule.rules, schedule.cursor.planned
    if plan is None or not rules.may_defer or schedule.cursor.pending != occurrence:
        return occurrence
    if planned is not None and planned.holds(now) and planned.start_at < now + PERIOD_S:
        return planned.start_at
    if schedule.cursor.tries > _MAX_DEATHS:
        why = "the processes that were to decide its start died"
        decided = PlannedStart(max(now, occurrence), now, why)
    else:
        decided = plan(schedule, now)

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


def _run(
    schedules: Schedules,
    schedule: Schedule,
    occurrence: float,
    run: Callable[[Schedule, Callable[[], None]], int],
) -> int:
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
    lock = FileLock(schedules.directory / _lock_name(job, occurrence))
    with contextlib.suppress(OSError):
        if lock.acquire():
            return lock
    return None


def taken(schedules: Schedules, job: str, occurrence: float, descriptor: int) -> FileLock:
    """Return the lock of an occurrence that this process has inherited as a descriptor.

    Raises:
        UsageError: If it has inherited none.
    """
    lock = FileLock(schedules.directory / _lock_name(job, occurrence))
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


def _lock_name(job: str, occurrence: float) -> str:
    return f"{job}@{occurrence:.3f}.lock"
