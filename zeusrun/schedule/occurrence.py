"""One occurrence, from its process to what became of it."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.clock import read_clock, timestamp
from zeusrun.errors import BusyError, ExitCode, LaunchError, ZeusrunError, advice_on
from zeusrun.files.lock import FileLock
from zeusrun.files.private import open_for_writing
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.schedule.due import Cursor, why_missed
from zeusrun.schedule.store import UNDERWAY, Occurrence

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zeusrun.launcher.processes.background import Detached
    from zeusrun.schedule.store import Schedule, Schedules

PERIOD_S = 60.0
"""A process is started within so many seconds before its occurrence."""

_PATIENCE_S = 1.0  # a tick that looks whether somebody is at it has it for a moment
_LOG_BYTES = 1 << 20
_LOGS = 3


def start_occurrence(schedules: Schedules, schedule: Schedule, occurrence: float) -> Detached:
    """Start an occurrence that is due, with its output in the job's log.

    Raises:
        LaunchError: If it cannot be started.
    """
    from zeusrun.launcher.processes.background import start_detached  # noqa: PLC0415 - most ticks start nothing

    try:
        log = open_log(schedules.log(schedule.job))
        try:
            argv = fire_command(schedule, occurrence)
            return start_detached(argv, environment_of(schedules, schedule), log)
        finally:
            os.close(log)
    except OSError as error:
        add = f"`zeusrun schedule add {schedule.job_file}`"
        advice = advice_on(error, f"{add} with a zeusrun that works sets it up again")
        raise LaunchError(
            f"{schedule.job} cannot be started: {error.filename}: {error.strerror}; {advice}"
        ) from error


def fire_command(schedule: Schedule, occurrence: float, *options: str) -> list[str]:
    """Return the command that runs an occurrence, in a process of its own."""
    verb = [schedule.python, "-m", "zeusrun", "schedule", "fire"]
    return [*verb, schedule.job, f"{occurrence:.3f}", *options]


def environment_of(schedules: Schedules, schedule: Schedule) -> dict[str, str]:
    """Return what the runs of a schedule get, and nothing else."""
    return {**schedule.environment, "ZEUSRUN_HOME": str(schedules.directory.parent)}


def fire(
    schedules: Schedules,
    job: str,
    occurrence: float,
    run: Callable[[Schedule, Callable[[], None]], int],
    *,
    by_hand: bool = False,
) -> int:
    """Run an occurrence, unless somebody else has begun it, and keep what became of it.

    Args:
        schedules: Of the user.
        job: Whose.
        occurrence: Which, in Unix seconds; what a tick has found due.
        run: Runs the job, and calls what it is given when its turn has come; returns the exit
            code. May raise a ``BusyError``: it was skipped.
        by_hand: It is none of the timetable, and due because somebody says so.

    Returns:
        The exit code.

    Raises:
        ZeusrunError: As ``run`` does.
    """
    lock = schedules.lock(_lock_name(job, occurrence))
    if not lock.acquire(_PATIENCE_S):
        return ExitCode.BUSY
    try:
        if not by_hand:  # until it is claimed, the next tick starts one that died
            start_at = schedules.read(job).rules.start_at(occurrence)
            time.sleep(max(0.0, min(PERIOD_S, start_at - read_clock())))
        with CaughtSignals():  # from here on, the run hears of it, and what became of it is kept
            schedule = _claim(schedules, job, occurrence, by_hand=by_hand)
            if schedule is None:
                return ExitCode.BUSY
            return _run(schedules, schedule, occurrence, run, watched=by_hand)
    finally:
        with contextlib.suppress(OSError):
            lock.path.unlink(missing_ok=True)
        lock.release()


def _claim(schedules: Schedules, job: str, occurrence: float, *, by_hand: bool) -> Schedule | None:
    """Mark an occurrence as begun; ``None`` if it is not to run, or has."""
    at = timestamp()
    with schedules.hold(job) as held:
        schedule = held.schedule or schedules.read(job)
        known = {firing.occurrence for firing in schedule.firings}
        if not by_hand and schedule.paused:
            if occurrence not in known:
                why = "it was paused"
                held.write(schedule.note(Occurrence(occurrence, "skipped", at, why=why, told=True)))
            return None
        if not by_hand:
            if schedule.cursor.pending != occurrence:
                return None
            schedule = replace(schedule, cursor=Cursor(schedule.cursor.until))
            # The machine may have slept since.
            late = why_missed(schedule.rules, occurrence, read_clock())
            if late is not None:
                held.write(schedule.note(Occurrence(occurrence, "missed", at, why=late)))
                return None
        return held.write(schedule.note(Occurrence(occurrence, "waiting", at)))


def _run(
    schedules: Schedules,
    schedule: Schedule,
    occurrence: float,
    run: Callable[[Schedule, Callable[[], None]], int],
    *,
    watched: bool,
) -> int:
    def note(**changes: object) -> None:
        told = watched and changes["result"] not in UNDERWAY  # who watches it need not be told
        firing = Occurrence(occurrence, at=timestamp(), told=told, **changes)  # type: ignore[arg-type]
        # A schedule that was removed meanwhile, or a full disk, changes nothing about the run.
        with contextlib.suppress(ZeusrunError):
            schedules.update(schedule.job, lambda found: found.note(firing))

    try:
        code = run(schedule, lambda: note(result="running"))
    except BusyError as error:
        note(result="skipped", exit_code=int(error.exit_code), why=str(error))
        raise
    except ZeusrunError as error:
        note(result="ended", exit_code=int(error.exit_code), why=str(error))
        raise
    except BaseException as error:
        note(result="ended", exit_code=int(ExitCode.BUG), why=f"{type(error).__name__}: {error}")
        raise
    note(result="ended", exit_code=code)
    return code


def is_dead(schedules: Schedules, job: str, occurrence: float) -> bool:
    """Whether the process of an occurrence is there no more; what it left locked is taken away."""
    lock = FileLock(schedules.directory / _lock_name(job, occurrence))
    try:
        if not lock.acquire():
            return False
        lock.path.unlink(missing_ok=True)
    except OSError:
        return False  # nobody may be called dead on a guess
    finally:
        lock.release()
    return True


def _lock_name(job: str, occurrence: float) -> str:
    return f"{job}@{occurrence:.3f}.lock"


def open_log(path: Path) -> int:
    """Open the log of a job's runs to append to; a long one begins anew, three old ones are kept.

    Raises:
        OSError: If it cannot be opened.
    """
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > _LOG_BYTES:
            for number in range(_LOGS - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    _numbered(path, number).replace(_numbered(path, number + 1))
            path.replace(_numbered(path, 1))
    return open_for_writing(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
