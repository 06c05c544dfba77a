"""The schedules of a user: one file for each job, replaced atomically under its lock."""

from __future__ import annotations

import difflib
import glob
import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from zeusrun.errors import ExitCode, HistoryError, UsageError, unwritable
from zeusrun.files.atomic import replace_file
from zeusrun.files.lock import SafeLock
from zeusrun.files.private import read_file
from zeusrun.job_name import check_job_name
from zeusrun.jobfile.validators import CatchUp, Overlap
from zeusrun.schedule.cron_expression import build_timetable
from zeusrun.schedule.due import Cursor, Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

Result = Literal["waiting", "running", "ended", "skipped", "missed", "lost"]

UNDERWAY = frozenset({"waiting", "running"})
_ENDINGS: dict[int | None, str] = {
    ExitCode.REACHED: "the target was reached",
    ExitCode.TRAINING_FAILED: "the training failed",
    ExitCode.TARGET_MISSED: "the target was missed",
    ExitCode.BUSY: "it was preempted, or replaced by a newer run",
    ExitCode.TIMED_OUT: "it took longer than timeout_s",
}
_VERSION = 1
_KEPT = 100  # occurrences; the history keeps all runs
_WHY_LENGTH = 2000
_PATIENCE_S = 10.0
_MAX_BYTES = 1 << 20
_FAR = 1e11  # seconds; larger than any valid time


@dataclass(frozen=True)
class Occurrence:
    """One occurrence of a schedule, and how it ended.

    Attributes:
        occurrence: When it was due, Unix seconds; for a run by hand, when the user started it.
        result: ``waiting`` for another run, ``running``, ``ended``; ``lost`` if its zeusrun died;
            or not started: ``skipped`` because of another run of the job, ``missed``.
        at: When the result was known, RFC 3339.
        exit_code: Exit code of ``submit``; ``None`` before it has ended.
        why: Reason for the result; ``None`` for none.
        told: Whether the result was reported to the user.
    """

    occurrence: float
    result: Result
    at: str
    exit_code: int | None = None
    why: str | None = None
    told: bool = False

    def describe(self) -> str:
        """Return how it ended, in words."""
        ending = self.why or _ENDINGS.get(self.exit_code, "it did not end well")
        return f"{ending} (exit code {self.exit_code})" if self.exit_code else ending


@dataclass(frozen=True)
class Schedule:
    """A job that runs by itself.

    Attributes:
        job: Its name.
        job_file: Absolute path.
        rules: When it runs.
        overlap: What to do if a run of the job is still there.
        python: The interpreter that has zeusrun.
        environment: The environment of its runs, instead of cron's minimal one.
        cursor: Up to when its occurrences have been decided.
        paused: Whether it starts nothing.
        firings: The last occurrences, oldest first.
        section: The job file's ``schedule`` section when the job was scheduled.
    """

    job: str
    job_file: str
    rules: Rules
    overlap: Overlap
    python: str
    environment: Mapping[str, str] = field(repr=False)
    cursor: Cursor
    paused: bool = False
    firings: tuple[Occurrence, ...] = ()
    section: Mapping[str, str | None] = field(default_factory=dict)

    def note(self, occurrence: Occurrence) -> Schedule:
        """Return the schedule with an occurrence added, or replaced if it was there."""
        others = [each for each in self.firings if each.occurrence != occurrence.occurrence]
        settled = [each for each in others if each.result not in UNDERWAY]
        # Keep all that are under way. Of the others, drop first those that were reported.
        settled.sort(key=lambda each: (not each.told, each.occurrence))
        gone = {each.occurrence for each in settled[: max(0, len(others) + 1 - _KEPT)]}
        why = None if occurrence.why is None else occurrence.why[:_WHY_LENGTH]
        kept = [each for each in others if each.occurrence not in gone]
        ordered = sorted([*kept, replace(occurrence, why=why)], key=lambda each: each.occurrence)
        return replace(self, firings=tuple(ordered))

    def forget_after(self, now: float) -> Schedule:
        """Return the schedule without missed occurrences after ``now``: the clock was ahead."""
        kept = (f for f in self.firings if f.result != "missed" or f.occurrence <= now)
        return replace(self, firings=tuple(kept))

    def to_json(self) -> dict[str, Any]:
        """Return what is written to the file."""
        record = asdict(self)
        record["rules"]["timetable"] = asdict(self.rules.timetable)
        return {
            "version": _VERSION,
            **record,
            "environment": dict(self.environment),
            "section": dict(self.section),
        }


class Schedules:
    """All schedules under a home."""

    def __init__(self, home: Path) -> None:
        """Store the folder; nothing is read yet."""
        self.directory = home / "schedules"

    @property
    def heartbeat(self) -> Path:
        """A file that every tick touches."""
        return self.directory / "ticked"

    def jobs(self) -> list[str]:
        """Return the names of the jobs that have a schedule, in order."""
        try:
            found = [path for path in self.directory.iterdir() if path.suffix == ".json"]
        except OSError:
            return []
        return sorted(path.stem for path in found)

    def path(self, job: str) -> Path:
        """Return the file of a job's schedule.

        Raises:
            UsageError: If the name is not valid for a job.
        """
        try:
            return self.directory / f"{check_job_name(job)}.json"
        except ValueError as error:
            raise UsageError(f"{job!r} is no job name: it {error}") from None

    def log(self, job: str) -> Path:
        """Return the file for the output of a job's runs."""
        return self.directory / f"{job}.log"

    def read(self, job: str) -> Schedule:
        """Return a job's schedule.

        Raises:
            UsageError: If it has none.
            HistoryError: If it cannot be read.
        """
        path = self.path(job)
        try:
            return decode_schedule(read_file(path, _MAX_BYTES), job)
        except FileNotFoundError:
            names = self.jobs()
            close = difflib.get_close_matches(job, names, n=1)
            known = f"schedules: {', '.join(names)}" if names else "there is none yet"
            known = f"did you mean {close[0]}?" if close else known
            raise UsageError(f"{job} has no schedule; {known}") from None
        except OSError as error:
            raise HistoryError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise HistoryError(
                f"{path} is no schedule of this zeusrun ({error}); run `zeusrun schedule remove "
                f"{job}` and add it again"
            ) from None

    @contextmanager
    def hold(self, job: str) -> Iterator[HeldSchedule]:
        """Lock a job's schedule; the job need not have one.

        Raises:
            HistoryError: If it cannot be read, or another process keeps the lock.
        """
        with self._locked(job):
            found = self.read(job) if self.path(job).exists() else None
            yield HeldSchedule(self.path(job), found)

    def update(self, job: str, change: Callable[[Schedule], Schedule]) -> Schedule:
        """Change a schedule under its lock; return the changed schedule.

        Raises:
            UsageError: If there is none.
            HistoryError: If it cannot be read or written.
        """
        if not self.path(job).exists():
            self.read(job)
        with self.hold(job) as held:
            return held.write(change(held.schedule or self.read(job)))

    def remove(self, job: str) -> None:
        """Remove a schedule, even an unreadable one; its log stays.

        Raises:
            UsageError: If there is none.
            HistoryError: If it cannot be removed.
        """
        if not self.path(job).exists():
            self.read(job)
        with self._locked(job):
            try:
                self.path(job).unlink(missing_ok=True)
                for lock in self.directory.glob(f"{glob.escape(job)}@*.lock"):
                    if (held := self.lock(lock.name)).acquire():  # its run is dead
                        lock.unlink(missing_ok=True)
                        held.release()
            except OSError as error:
                raise HistoryError(
                    f"{self.path(job)} cannot be removed: {error.strerror}"
                ) from error

    def lock(self, name: str) -> SafeLock:
        """Return a lock in the folder of the schedules; not taken yet."""
        return SafeLock(self.directory / name)

    @contextmanager
    def editing_crontab(self) -> Iterator[None]:
        """Lock the crontab's entry, from the check whether it is needed until the edit.

        Raises:
            HistoryError: If another process keeps the lock.
        """
        with self._holding(".crontab.lock", "the crontab"):  # no job has this name
            yield

    @contextmanager
    def _locked(self, job: str) -> Iterator[None]:
        name = self.path(job).with_suffix(".lock").name
        with self._holding(name, f"the schedule of {job}"):
            yield

    @contextmanager
    def _holding(self, name: str, what: str) -> Iterator[None]:
        lock = self.lock(name)
        if not lock.acquire(_PATIENCE_S):
            raise HistoryError(f"another process has locked {what} and does not release it")
        try:
            yield
        finally:
            lock.release()


@dataclass
class HeldSchedule:
    """A job's schedule while this process holds its lock.

    Attributes:
        path: Its file.
        schedule: The schedule on disk; ``None`` if there is none.
    """

    path: Path
    schedule: Schedule | None

    def write(self, schedule: Schedule) -> Schedule:
        """Write a schedule, if it differs; return it.

        Raises:
            HistoryError: If it cannot be written.
        """
        content = json.dumps(schedule.to_json(), indent=1).encode() + b"\n"
        if len(content) > _MAX_BYTES:
            raise HistoryError(
                f"the schedule of {schedule.job} is too large; keep fewer or shorter variables for "
                "its runs"
            )
        try:
            if schedule != self.schedule:
                replace_file(self.path, content)
        except OSError as error:
            raise unwritable(self.path, error) from error
        self.schedule = schedule
        return schedule


def decode_schedule(content: bytes, job: str) -> Schedule:
    """Return the schedule in the file of a job.

    Raises:
        ValueError: If it is no valid schedule.
    """
    try:
        record = json.loads(content)
        _check_version(record.pop("version"))
        rules = dict(record.pop("rules"))
        timetable = rules.pop("timetable")
        cursor = record.pop("cursor")
        cursor.pop("behind", None)  # written by an earlier zeusrun
        schedule = Schedule(
            rules=Rules(build_timetable(timetable["expression"], timetable["tz"]), **rules),
            cursor=Cursor(**cursor),
            firings=tuple(Occurrence(**each) for each in record.pop("firings")),
            **record,
        )
        _check(schedule, job)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
        raise ValueError(f"its content is not valid: {error}") from None
    return schedule


def _check_version(version: object) -> None:
    if version != _VERSION:
        raise ValueError(f"it is of version {version}")


def _check(schedule: Schedule, job: str) -> None:
    """Check all values now, so that nothing fails at night.

    Raises:
        TypeError: If a value has the wrong type.
    """
    rules, cursor = schedule.rules, schedule.cursor
    numbers = [cursor.until, rules.jitter_s, *(each.occurrence for each in schedule.firings)]
    numbers += [number for number in (cursor.pending, rules.deadline_s) if number is not None]
    texts = [schedule.job, schedule.job_file, schedule.python, rules.key]
    for each in (schedule.environment, schedule.section):
        texts += [*each.keys(), *(value for value in each.values() if value is not None)]
    results = {each.result for each in schedule.firings}
    texts += [text for f in schedule.firings for text in (f.at, f.why) if text is not None]
    codes = [f.exit_code for f in schedule.firings if f.exit_code is not None]
    if not all(type(n) in (int, float) and 0 <= n < _FAR for n in [*numbers, *codes, cursor.tries]):
        raise TypeError("a number is not valid")
    if not all(isinstance(text, str) and "\0" not in text for text in texts):
        raise TypeError("a text is not valid")
    if schedule.job != job:
        raise TypeError(f"it belongs to {schedule.job}")
    if schedule.overlap not in get_args(Overlap) or rules.catch_up not in get_args(CatchUp):
        raise TypeError("a policy is unknown")
    if not results <= set(get_args(Result)) or not isinstance(schedule.paused, bool):
        raise TypeError("a state is unknown")
