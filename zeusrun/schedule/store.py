"""The schedules of a user: one file for each job, replaced atomically under its lock."""

from __future__ import annotations

import glob
import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from zeusrun.clock import timestamp
from zeusrun.errors import ExitCode, HistoryError, UsageError, did_you_mean, writes_to
from zeusrun.files.lock import SafeLock
from zeusrun.files.private import build_known, check_version, read_file, replace_file
from zeusrun.job_name import check_job_name
from zeusrun.jobfile.validators import CatchUp, Overlap, StartBy, time_of_day
from zeusrun.schedule.due import Cursor, PlannedStart, Rules, build_timetable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
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
_LOCK_WAIT_S = 10.0
_MAX_BYTES = 16 << 20  # more than the kernel allows for an environment


@dataclass(frozen=True)
class Occurrence:
    """One occurrence of a schedule, and how it ended.

    Attributes:
        occurrence: When it was due, Unix seconds; for a run by hand, when the user started it.
        result: ``waiting`` for another run, ``running``, ``ended``; ``lost`` if its zeusrun died;
            or not started: ``skipped`` because of another run of the job, ``missed``.
        at: When the result was known, RFC 3339.
        told: Whether the result was reported to the user.
        start: If it may be deferred: when it was to start, and why then.
    """

    occurrence: float
    result: Result
    at: str
    exit_code: int | None = None  # that of ``submit``
    why: str | None = None  # the reason for the result
    told: bool = False
    start: str | None = None

    def describe(self) -> str:
        """Return how it ended, in words."""
        ending = self.why or _ENDINGS.get(self.exit_code, "it did not end well")
        return f"{ending} (exit code {self.exit_code})" if self.exit_code else ending


@dataclass(frozen=True)
class Schedule:
    """A job that runs by itself.

    Attributes:
        overlap: What to do if a run of the job is still there.
        python: The interpreter that has zeusrun.
        environment: The environment of its runs, instead of cron's minimal one.
        firings: The last occurrences, oldest first.
        section: The job file's ``schedule`` section when the job was scheduled.
    """

    job: str
    job_file: str  # absolute path
    rules: Rules
    overlap: Overlap
    python: str
    environment: Mapping[str, str] = field(repr=False)
    cursor: Cursor
    paused: bool = False
    firings: tuple[Occurrence, ...] = ()
    section: Mapping[str, str | None] = field(default_factory=dict)

    def describe_start(self) -> str | None:
        """Return when a deferred occurrence starts, and why; ``None`` if none is deferred."""
        pending, planned = self.cursor.pending, self.cursor.planned
        if pending is None or planned is None or self.paused:
            return None
        return planned.describe(self.rules.timetable, pending)

    def planned_json(self) -> dict[str, str]:
        """Return the same for programs; empty if none is deferred."""
        planned = self.cursor.planned
        if planned is None or self.cursor.pending is None or self.paused:
            return {}
        start = self.rules.timetable.local(planned.start_at)
        return {"start_at": start.isoformat(), "why": planned.why}

    def skip_pending(self, now: float, why: str) -> Schedule:
        """Return the schedule with nothing pending from now on; what was pending is skipped."""
        pending, empty = self.cursor.pending, replace(self, cursor=Cursor(now))
        if pending is None:
            return empty
        return empty.note(Occurrence(pending, "skipped", timestamp(now), why=why))

    def note(self, occurrence: Occurrence) -> Schedule:
        """Return the schedule with an occurrence added, or replaced if it was there."""
        others = [each for each in self.firings if each.occurrence != occurrence.occurrence]
        settled = [each for each in others if each.result not in UNDERWAY]
        # Keep all that are under way. Of the others, drop first those that were reported.
        settled.sort(key=lambda each: (not each.told, each.occurrence))
        dropped = settled[: max(0, len(others) + 1 - _KEPT)]
        why = None if occurrence.why is None else occurrence.why[:_WHY_LENGTH]
        kept = [*(each for each in others if each not in dropped), replace(occurrence, why=why)]
        return replace(self, firings=tuple(sorted(kept, key=lambda each: each.occurrence)))

    def to_json(self) -> dict[str, Any]:
        """Return what is written to the file."""
        return {"version": _VERSION, **asdict(self)}


class Schedules:
    """All schedules under a home.

    The methods raise ``UsageError`` if a job has no schedule or its name is not valid, and
    ``HistoryError`` if a file cannot be read or written, or another process keeps its lock.
    """

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
            return sorted(p.stem for p in self.directory.iterdir() if p.suffix == ".json")
        except OSError:
            return []

    def path(self, job: str) -> Path:
        """Return the file of a job's schedule."""
        try:
            return self.directory / f"{check_job_name(job)}.json"
        except ValueError as error:
            raise UsageError(f"{job!r} is not a job name: it {error}") from None

    def log(self, job: str) -> Path:
        """Return the file for the output of a job's runs."""
        return self.directory / f"{job}.log"

    def read(self, job: str) -> Schedule:
        """Return a job's schedule."""
        path = self.path(job)
        try:
            return decode_schedule(read_file(path, _MAX_BYTES), job, path)
        except FileNotFoundError:
            names = self.jobs()
            known = f"these jobs have one: {', '.join(names)}" if names else "there is none yet"
            known += did_you_mean(job, names)
            raise UsageError(f"{job} has no schedule; {known}") from None
        except OSError as error:
            raise HistoryError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise HistoryError(
                f"{path} is not a schedule of this zeusrun ({error}); run `zeusrun schedule remove "
                f"{job}` and add it again"
            ) from None

    @contextmanager
    def hold(self, job: str) -> Iterator[Schedule | None]:
        """Lock a job's schedule and read it; ``None`` if the job has none."""
        path = self.path(job)
        with self.locked(f"{job}.lock", f"the schedule of {job}"):
            yield self.read(job) if path.exists() else None

    def write(self, schedule: Schedule) -> Schedule:
        """Write a schedule, whose lock the caller holds; return it."""
        path = self.path(schedule.job)
        with writes_to(path):
            replace_file(path, json.dumps(schedule.to_json(), indent=1).encode() + b"\n")
        return schedule

    def update(self, job: str, change: Callable[[Schedule], Schedule]) -> Schedule:
        """Change a schedule under its lock; return the changed schedule."""
        self.read(job)  # raises before a lock file is made for a job without a schedule
        with self.hold(job) as found:
            return self.write(change(found or self.read(job)))

    def remove(self, job: str) -> None:
        """Remove a schedule, even an unreadable one; its log stays."""
        path = self.path(job)
        if not path.exists():
            self.read(job)
        with self.locked(f"{job}.lock", f"the schedule of {job}"):
            try:
                # The locks of runs that were killed go, too.
                for each in (path, *self.directory.glob(f"{glob.escape(job)}@*.lock")):
                    each.unlink(missing_ok=True)
            except OSError as error:
                raise HistoryError(f"{path} cannot be removed: {error.strerror}") from error

    def lock(self, name: str) -> SafeLock:
        """Return a lock in the folder, not taken yet. Names without a dot belong to jobs."""
        return SafeLock(self.directory / name)

    def locked(self, name: str, what: str) -> AbstractContextManager[None]:
        """Hold a lock; wait some seconds for it. ``what`` it locks is for the error message."""
        otherwise = f"another process has locked {what} and does not release it"
        return self.lock(name).held(_LOCK_WAIT_S, otherwise)


def decode_schedule(content: bytes, job: str, path: Path) -> Schedule:
    """Return the schedule in the file of a job.

    Raises:
        ValueError: If it is not a valid schedule.
        HistoryError: If a newer zeusrun has written it.
    """
    try:
        record = json.loads(content)
        check_version(record, _VERSION, path)
        rules, cursor = record["rules"], record["cursor"]
        timetable = build_timetable(rules["timetable"]["expression"], rules["timetable"]["tz"])
        planned = cursor["planned"]
        planned = None if planned is None else build_known(PlannedStart, planned)
        schedule = build_known(
            Schedule,
            record,
            rules=build_known(Rules, rules, timetable=timetable),
            cursor=build_known(Cursor, cursor, planned=planned),
            firings=tuple(build_known(Occurrence, each) for each in record["firings"]),
        )
        _check(schedule, job)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
        raise ValueError(f"its content is not valid: {error}") from None
    return schedule


def _check(schedule: Schedule, job: str) -> None:
    """Check what a tick uses, so that one bad file does not stop the other jobs."""
    rules = schedule.rules
    if schedule.job != job:
        raise TypeError(f"it belongs to {schedule.job}")
    if not all(isinstance(text, str) for text in schedule.environment.values()):
        raise TypeError("a variable is no text")
    words = [(schedule.overlap, Overlap), (rules.catch_up, CatchUp), (rules.by, StartBy)]
    for word, known in [*words, *((each.result, Result) for each in schedule.firings)]:
        if word not in get_args(known):
            raise TypeError(f"{word!r} is unknown")
    if rules.finish_by is not None:
        time_of_day(rules.finish_by)
