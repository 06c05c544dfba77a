"""The schedules of a user: a file for each job, changed under its lock and replaced whole."""

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
from zeusrun.jobfile.validators import CatchUp, Overlap, check_job_name
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
_KEPT = 100  # firings; what ran is in the history for good
_WHY_LENGTH = 2000
_PATIENCE_S = 10.0
_MAX_BYTES = 1 << 20
_FAR = 1e11  # seconds that no time of day has


@dataclass(frozen=True)
class Firing:
    """One occurrence, and what became of it.

    Attributes:
        occurrence: When it was due, Unix seconds; by hand, when it was asked for.
        result: ``waiting`` for its turn, ``running``, ``ended``, or never started: ``skipped``
            for another run of the job, ``missed``, ``lost`` when its zeusrun died.
        at: When that was known, RFC 3339.
        exit_code: Of ``submit``; ``None`` before it has ended.
        why: What there is to say.
        told: Whether cron has been told, where it is to be.
    """

    occurrence: float
    result: Result
    at: str
    exit_code: int | None = None
    why: str | None = None
    told: bool = False

    def describe(self) -> str:
        """Say how it ended."""
        ending = self.why or _ENDINGS.get(self.exit_code, "it did not end well")
        return f"{ending} (exit code {self.exit_code})" if self.exit_code else ending


@dataclass(frozen=True)
class Schedule:
    """A job that runs by itself.

    Attributes:
        job: Its name.
        job_file: Absolute.
        rules: When.
        overlap: What to do when a run of the job is still there.
        python: The interpreter that has zeusrun.
        environment: What its runs get, instead of cron's bare one.
        cursor: How far its occurrences have been decided.
        paused: Whether nothing is started.
        firings: The last occurrences, oldest first.
        section: What the job file said of it when it was scheduled.
    """

    job: str
    job_file: str
    rules: Rules
    overlap: Overlap
    python: str
    environment: Mapping[str, str] = field(repr=False)
    cursor: Cursor
    paused: bool = False
    firings: tuple[Firing, ...] = ()
    section: Mapping[str, str | None] = field(default_factory=dict)

    def note(self, firing: Firing) -> Schedule:
        """Return the schedule with a firing added, or put in the place of that occurrence's."""
        others = [each for each in self.firings if each.occurrence != firing.occurrence]
        settled = [each for each in others if each.result not in UNDERWAY]
        # What is under way stays, however many have come since; so does what nobody was told of,
        # as long as there is anything else.
        settled.sort(key=lambda each: (not each.told, each.occurrence))
        gone = {each.occurrence for each in settled[: max(0, len(others) + 1 - _KEPT)]}
        why = None if firing.why is None else firing.why[:_WHY_LENGTH]
        kept = [each for each in others if each.occurrence not in gone]
        ordered = sorted([*kept, replace(firing, why=why)], key=lambda each: each.occurrence)
        return replace(self, firings=tuple(ordered))

    def forget_after(self, now: float) -> Schedule:
        """Return the schedule without what a clock that was ahead has missed beyond ``now``."""
        unreal = {"missed", "skipped"}
        kept = (f for f in self.firings if f.result not in unreal or f.occurrence <= now)
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
        """Remember where; nothing is read yet."""
        self.directory = home / "schedules"

    @property
    def heartbeat(self) -> Path:
        """Touched by every tick."""
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
            UsageError: If no job can have this name.
        """
        try:
            return self.directory / f"{check_job_name(job)}.json"
        except ValueError as error:
            raise UsageError(f"{job!r} is no job's name: it {error}") from None

    def log(self, job: str) -> Path:
        """Return the file that the output of a job's runs goes to."""
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
            known = f"schedules there are: {', '.join(names)}" if names else "there is none yet"
            known = f"did you mean {close[0]}?" if close else known
            raise UsageError(f"{job} has no schedule; {known}") from None
        except OSError as error:
            raise HistoryError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise HistoryError(
                f"{path} is no schedule of this zeusrun ({error}); remove it by `zeusrun schedule "
                f"remove {job}` and add it again"
            ) from None

    @contextmanager
    def hold(self, job: str) -> Iterator[HeldSchedule]:
        """Keep a job's schedule to oneself, or its place if it has none.

        Raises:
            HistoryError: If it cannot be read, or somebody does not let go.
        """
        with self._locked(job):
            found = self.read(job) if self.path(job).exists() else None
            yield HeldSchedule(self.path(job), found)

    def update(self, job: str, change: Callable[[Schedule], Schedule]) -> Schedule:
        """Change a schedule while nobody else does; return it as changed.

        Raises:
            UsageError: If there is none.
            HistoryError: If it cannot be read or written.
        """
        if not self.path(job).exists():
            self.read(job)
        with self.hold(job) as held:
            return held.write(change(held.schedule or self.read(job)))

    def remove(self, job: str) -> None:
        """Remove a schedule, readable or not; its log stays.

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
                    if (held := self.lock(lock.name)).acquire():  # a dead run's
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
        """Keep the crontab's entry to oneself: whether it is needed, and the edit, are one.

        Raises:
            HistoryError: If somebody does not let go.
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
            raise HistoryError(f"another process holds {what} and does not let go")
        try:
            yield
        finally:
            lock.release()


@dataclass
class HeldSchedule:
    """A job's schedule while nobody else reads or changes it.

    Attributes:
        path: Of its file.
        schedule: As it is on disk; ``None`` if there is none.
    """

    path: Path
    schedule: Schedule | None

    def write(self, schedule: Schedule) -> Schedule:
        """Put one in its place, if it differs; return it.

        Raises:
            HistoryError: If it cannot be written.
        """
        content = json.dumps(schedule.to_json(), indent=1).encode() + b"\n"
        if len(content) > _MAX_BYTES:
            raise HistoryError(
                f"the schedule of {schedule.job} is too large to be read again; keep fewer or "
                "shorter variables for it"
            )
        try:
            if schedule != self.schedule:
                replace_file(self.path, content)
        except OSError as error:
            raise unwritable(self.path, error) from error
        self.schedule = schedule
        return schedule


def decode_schedule(content: bytes, job: str) -> Schedule:
    """Return what the file of a job holds.

    Raises:
        ValueError: If it is no schedule.
    """
    try:
        record = json.loads(content)
        _check_version(record.pop("version"))
        rules = dict(record.pop("rules"))
        timetable = rules.pop("timetable")
        schedule = Schedule(
            rules=Rules(build_timetable(timetable["expression"], timetable["tz"]), **rules),
            cursor=Cursor(**record.pop("cursor")),
            firings=tuple(Firing(**each) for each in record.pop("firings")),
            **record,
        )
        _check(schedule, job)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
        raise ValueError(f"its content is not one: {error}") from None
    return schedule


def _check_version(version: object) -> None:
    if version != _VERSION:
        raise ValueError(f"it is of version {version}")


def _check(schedule: Schedule, job: str) -> None:
    """Check what is used later, so that nothing fails in the middle of the night.

    Raises:
        TypeError: If a value is of another kind.
    """
    rules, cursor = schedule.rules, schedule.cursor
    numbers = [cursor.until, rules.jitter_s, *(firing.occurrence for firing in schedule.firings)]
    numbers += [
        number for number in (cursor.pending, cursor.behind, rules.deadline_s) if number is not None
    ]
    texts = [schedule.job, schedule.job_file, schedule.python, rules.key]
    for each in (schedule.environment, schedule.section):
        texts += [*each.keys(), *(value for value in each.values() if value is not None)]
    results = {firing.result for firing in schedule.firings}
    texts += [text for f in schedule.firings for text in (f.at, f.why) if text is not None]
    codes = [f.exit_code for f in schedule.firings if f.exit_code is not None]
    if not all(type(n) in (int, float) and 0 <= n < _FAR for n in [*numbers, *codes, cursor.tries]):
        raise TypeError("a number is none")
    if not all(isinstance(text, str) and "\0" not in text for text in texts):
        raise TypeError("a text is none")
    if schedule.job != job:
        raise TypeError(f"it is that of {schedule.job}")
    if schedule.overlap not in get_args(Overlap) or rules.catch_up not in get_args(CatchUp):
        raise TypeError("a policy is none")
    if not results <= set(get_args(Result)) or not isinstance(schedule.paused, bool):
        raise TypeError("a state is none")
