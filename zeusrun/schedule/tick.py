"""What happens every minute: occurrences that are due are started, and what became of them told."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from zeusrun.errors import BusyError, ExitCode, LaunchError, ZeusrunError
from zeusrun.file_lock import FileLock
from zeusrun.private_files import open_for_writing, write_file
from zeusrun.schedule.clock import read_clock
from zeusrun.schedule.due import Cursor, look
from zeusrun.schedule.store import Firing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zeusrun.launcher.process import Detached
    from zeusrun.schedule.store import Schedule, Schedules

PERIOD_S = 60.0
_DAY_S = 86400.0
_LOG_BYTES = 1 << 20
_LOGS = 3

_TO_BE_TOLD = {
    ExitCode.TRAINING_FAILED: "the training failed",
    ExitCode.TARGET_MISSED: "the target was missed",
    ExitCode.BUSY: "it was preempted; the next run goes on with it",
    ExitCode.TIMED_OUT: "it took longer than timeout_s",
}


@dataclass(frozen=True)
class Ticked:
    """What a tick found.

    Attributes:
        due: What is to be started, with the occurrence.
        told: Sentences for whoever looks after the machine.
    """

    due: tuple[tuple[Schedule, float], ...]
    told: tuple[str, ...]


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
    for job in schedules.jobs():
        try:
            before: list[str] = []

            def change(schedule: Schedule, said: list[str] = before) -> Schedule:
                return _decide(schedules, schedule, now, said)

            schedule = schedules.update(job, change)
            pending = schedule.cursor.pending
            if pending is not None and schedule.rules.start_at(pending) < now + PERIOD_S:
                due.append((schedule, pending))
            told += before
        except ZeusrunError as error:
            told += _seldom(schedules, str(error), now)
    return Ticked(tuple(due), tuple(told))


def _seldom(schedules: Schedules, text: str, now: float) -> list[str]:
    """Return a sentence that is true for long once a day, not every minute."""
    name = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
    path = schedules.directory / f".told-{name}"
    with contextlib.suppress(OSError):
        if now - path.stat().st_mtime < _DAY_S:
            return []
    with contextlib.suppress(OSError):
        write_file(path, text.encode(errors="replace"))
    return [text]


def _decide(schedules: Schedules, schedule: Schedule, now: float, told: list[str]) -> Schedule:
    at = _timestamp(now)
    for firing in schedule.firings:
        if firing.result in {"waiting", "running"} and _is_dead(schedules, schedule.job, firing):
            schedule = schedule.note(replace(firing, result="lost", at=at, why="its zeusrun died"))
    if schedule.paused:
        schedule = replace(schedule, cursor=Cursor(max(now, schedule.cursor.until)))
    else:
        found = look(schedule.rules, schedule.cursor, now)
        # A clock that was wrong for a while may show what was decided long ago again.
        decided = {firing.occurrence for firing in schedule.firings}
        again = found.cursor.pending in decided
        cursor = replace(found.cursor, pending=None) if again else found.cursor
        schedule = replace(schedule, cursor=cursor)
        for missed in found.missed:
            if missed.occurrence not in decided:
                schedule = schedule.note(Firing(missed.occurrence, "missed", at, why=missed.why))
    told += _untold(schedules, schedule)
    return replace(schedule, firings=tuple(replace(f, told=_is_over(f)) for f in schedule.firings))


def _is_over(firing: Firing) -> bool:
    return firing.result not in {"waiting", "running"}


def _untold(schedules: Schedules, schedule: Schedule) -> list[str]:
    """Return a sentence on each occurrence that did not go well, and has not been told."""
    log = schedules.log(schedule.job)
    told = []
    missed = [f for f in schedule.firings if f.result == "missed" and not f.told]
    if missed:
        first, last = (_when(schedule, each.occurrence) for each in (missed[0], missed[-1]))
        times = first if len(missed) == 1 else f"{len(missed)} times from {first} to {last}"
        told.append(f"{schedule.job} did not run {times}: {missed[-1].why}")
    for firing in schedule.firings:
        if firing.told or not _is_over(firing) or firing.exit_code == ExitCode.REACHED:
            continue
        when = _when(schedule, firing.occurrence)
        if firing.result == "skipped":
            told.append(f"{schedule.job} did not run {when}: {firing.why}")
        elif firing.result == "lost":
            told.append(f"{schedule.job}, run of {when}: {firing.why}; see {log}")
        elif firing.result == "ended":
            code = firing.exit_code or 0
            known = {int(number): text for number, text in _TO_BE_TOLD.items()}
            why = firing.why or known.get(code, "it did not end well")
            told.append(f"{schedule.job}, run of {when}: {why} (exit code {code}); see {log}")
    return told


def _when(schedule: Schedule, occurrence: float) -> str:
    return f"{schedule.rules.timetable.local(occurrence):%Y-%m-%d %H:%M}"


def _timestamp(now: float) -> str:
    return datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="seconds")


def _firing_lock(schedules: Schedules, job: str, occurrence: float) -> Path:
    return schedules.directory / f"{job}@{occurrence:.3f}.lock"


def _is_dead(schedules: Schedules, job: str, firing: Firing) -> bool:
    path = _firing_lock(schedules, job, firing.occurrence)
    lock = FileLock(path)
    try:
        if not lock.acquire():
            return False
        path.unlink(missing_ok=True)
    except OSError:
        return False  # nobody may be called dead on a guess
    finally:
        lock.release()
    return True


def fire(
    schedules: Schedules,
    job: str,
    occurrence: float,
    run: Callable[[Schedule], int],
    *,
    by_hand: bool = False,
) -> int:
    """Run an occurrence, unless somebody else has begun it, and keep what became of it.

    Args:
        schedules: Of the user.
        job: Whose.
        occurrence: Which, in Unix seconds; what a tick has found due.
        run: Runs the job; returns its exit code. May raise a ``BusyError``: it was skipped.
        by_hand: It is none of the timetable, and due because somebody says so.

    Returns:
        The exit code.

    Raises:
        ZeusrunError: As ``run`` does.
    """
    path = _firing_lock(schedules, job, occurrence)
    lock = schedules.lock(path.name)
    if not lock.acquire():
        return ExitCode.BUSY
    try:
        if not by_hand:  # until it is claimed, the next tick starts one that died
            start_at = schedules.read(job).rules.start_at(occurrence)
            time.sleep(max(0.0, min(PERIOD_S, start_at - read_clock())))
        mine: list[bool] = []

        def claim(schedule: Schedule) -> Schedule:
            cursor = schedule.cursor
            if not by_hand and schedule.paused:
                return _skip_paused(schedule, occurrence)
            if not by_hand and cursor.pending != occurrence:
                return schedule
            mine.append(True)
            if cursor.pending == occurrence:
                cursor = replace(cursor, pending=None)
            firing = Firing(occurrence, "waiting", _timestamp(read_clock()))
            return replace(schedule, cursor=cursor).note(firing)

        schedule = schedules.update(job, claim)
        if not mine:
            return ExitCode.BUSY
        return _run(schedules, schedule, occurrence, run, watched=by_hand)
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        lock.release()


def _skip_paused(schedule: Schedule, occurrence: float) -> Schedule:
    if occurrence in {firing.occurrence for firing in schedule.firings}:
        return schedule
    at = _timestamp(read_clock())
    return schedule.note(Firing(occurrence, "skipped", at, why="it was paused", told=True))


def _run(
    schedules: Schedules,
    schedule: Schedule,
    occurrence: float,
    run: Callable[[Schedule], int],
    *,
    watched: bool,
) -> int:
    def note(**changes: object) -> None:
        told = watched and changes["result"] != "running"  # who watches it need not be told
        at = _timestamp(read_clock())
        firing = Firing(occurrence, at=at, told=told, **changes)  # type: ignore[arg-type]
        # A schedule that was removed meanwhile, or a full disk, changes nothing about the run.
        with contextlib.suppress(ZeusrunError):
            schedules.update(schedule.job, lambda found: found.note(firing))

    note(result="running")
    try:
        code = run(schedule)
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


def fire_command(schedule: Schedule, occurrence: float, *options: str) -> list[str]:
    """Return the command that runs an occurrence, in a process of its own."""
    verb = [schedule.python, "-m", "zeusrun", "schedule", "fire"]
    return [*verb, schedule.job, f"{occurrence:.3f}", *options]


def environment_of(schedules: Schedules, schedule: Schedule) -> dict[str, str]:
    """Return what the runs of a schedule get, and nothing else."""
    return {**schedule.environment, "ZEUSRUN_HOME": str(schedules.directory.parent)}


def start_occurrence(schedules: Schedules, schedule: Schedule, occurrence: float) -> Detached:
    """Start an occurrence that is due, with its output in the job's log.

    Raises:
        LaunchError: If it cannot be started.
    """
    from zeusrun.launcher.process import start_detached  # noqa: PLC0415 - most ticks start nothing

    try:
        log = open_log(schedules.log(schedule.job))
        try:
            when = schedule.rules.timetable.local(occurrence)
            os.write(log, f"── {schedule.job}, run of {when:%Y-%m-%d %H:%M %z} ──\n".encode())
            argv = fire_command(schedule, occurrence)
            return start_detached(argv, environment_of(schedules, schedule), log)
        finally:
            os.close(log)
    except OSError as error:
        raise LaunchError(
            f"{schedule.job} cannot be started: {error.filename}: {error.strerror}; "
            f"`zeusrun schedule add {schedule.job_file}` with a zeusrun that works sets it up again"
        ) from error
