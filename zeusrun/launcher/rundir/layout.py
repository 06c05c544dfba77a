"""The run directory of a trial: its paths, and the record and the live state in it."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from zeusrun.errors import writes_to
from zeusrun.files.home import runs_directory
from zeusrun.files.private import (
    check_version,
    make_folder,
    open_for_writing,
    read_file,
    replace_file,
    temporary_path,
    write_file,
)
from zeusrun.metrics.progress import TrainingSummary
from zeusrun.reasons import ReasonCode
from zeusrun.sidecar.events import ADAPT_STATE, SIDECAR_NAME, SYNC_STATE
from zeusrun.trial import Outcome, Trial

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

_Why: TypeAlias = tuple[ReasonCode, str]
_BY_USER = ReasonCode.CANCELLED, "cancelled by 'zeusrun cancel'"
_ASKED = ReasonCode.CANCELLED, ReasonCode.REPLACED, ReasonCode.REQUESTED


class _Under:
    """An attribute that is a path in the run directory."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: RunPaths, _owner: type[RunPaths]) -> Path:
        return paths.run_dir / self._name


@dataclass(frozen=True)
class RunPaths:
    """The files of one trial, all under ``run_dir``."""

    run_dir: Path

    job_copy = _Under("job.yaml")  # the job as it was run, with overrides
    trial = _Under("trial.json")  # the trial, apart from the history
    reserve = _Under("trial.reserve")  # disk space for the outcome
    sidecar = _Under(SIDECAR_NAME)  # the events of the ranks
    power = _Under("power.csv")  # the power samples
    logs = _Under("logs")
    torchrun_log = _Under("logs/torchrun.log")
    stacks = _Under("logs/stacks.txt")  # of all ranks at every stall
    error = _Under("error.json")  # the root cause of a crash
    stop = _Under("stop")  # while it exists, the script should stop
    stop_ending = _Under("stop.ending")  # becomes ``stop``; written while the disk has space
    cancel = _Under("cancel")  # another zeusrun asks the launcher to stop
    live = _Under("live.json")  # the running trial
    clocks = _Under("clock")  # the step clocks of the ranks
    checkpoints = _Under("checkpoints")  # kept across the attempts of one trial
    control_group = _Under("cgroup")  # the path of the run's control group, while it exists
    lock = _Under("lock")  # locked while the launcher lives

    @property
    def leftovers(self) -> tuple[Path, ...]:
        """The files that a launcher leaves only if it is killed."""
        return self.reserve, temporary_path(self.live), self.stop_ending

    def of_node(self, number: int) -> RunPaths:
        """Return the files of the ranks of another host, on that host; see ``nodes.mirror``."""
        return RunPaths(self.run_dir / "nodes" / str(number))

    @property
    def all_torchrun_logs(self) -> list[Path]:
        """The log of torchrun, then those that were copied from other hosts."""
        return [self.torchrun_log, *sorted(self.logs.glob("torchrun.*.log"))]

    @property
    def all_errors(self) -> list[Path]:
        """The record of the first failure, then those of other hosts."""
        return [self.error, *sorted(self.run_dir.glob("error.*.json"))]

    def rank_clock(self, rank: int) -> Path:
        """Return the step clock of a rank."""
        return self.clocks / f"rank{rank}"

    def rank_log(self, rank: int) -> Path:
        """Return the log of a rank."""
        return self.logs / f"rank{rank}.log"

    def rank_stack(self, rank: int) -> Path:
        """Return the file into which a rank writes its stacks when asked."""
        return self.logs / f"rank{rank}.stack"


def create_run(home: Path, job: str, trial: str) -> RunPaths:
    """Create the folders of a new trial, for its owner alone; raises ``HistoryError``."""
    paths = RunPaths(runs_directory(home, job) / trial)
    with writes_to(paths.run_dir):
        for folder in (paths.logs, paths.clocks, paths.checkpoints):
            make_folder(folder)
    return paths


def ask_to_cancel(paths: RunPaths, why: _Why = _BY_USER, *, at_once: bool = False) -> None:
    """Ask the launcher of a trial to stop it, as Ctrl-C does: once, or twice for ``at_once``.

    ``why``: what is recorded. Raises ``OSError`` if the file cannot be written.
    """
    fresh, (code, text) = paths.cancel.with_suffix(f".{os.getpid()}"), why
    content = f"{1 + at_once} {code.value} {text}".encode()
    replace_file(paths.cancel, content, fresh=fresh, durable=False)


def read_cancel(paths: RunPaths) -> tuple[int, ReasonCode, str] | None:
    """Return the number of interrupts requested, 1 or 2, and why; ``None`` without a request."""
    try:
        number, code, why = read_file(paths.cancel, 1000).decode().split(" ", 2)
        return 1 + ("1", "2").index(number), _ASKED[_ASKED.index(code)], why
    except OSError:
        return None
    except ValueError:  # a script has written it
        return 1, *_BY_USER


_PART = re.compile(r"part\d{1,9}")
_MOVED = re.compile(
    r"metrics\.jsonl|power\.csv|trial\.reserve|live\.json|error(\.\d+)?\.json|error\.json\.rank\d+"
    r"|(live\.json|adapt\.json|sync\.json|stop)\.tmp"  # of a writer that was killed
    r"|stop(\.ending)?|cancel(\.\d+)?|logs|clock|cgroup|elastic|nodes|loader\.(json|stop)"
)
_KEPT = {"job.yaml", "trial.json", "checkpoints", "lock", ADAPT_STATE, SYNC_STATE}


def has_checkpoint(run_dir: Path) -> bool:
    """Whether a script has saved anything in the checkpoint folder or the folder of its trial."""
    try:
        names = {path.name for path in run_dir.iterdir()} - _KEPT
        of_script = any(not (_MOVED.fullmatch(name) or _PART.fullmatch(name)) for name in names)
        return of_script or any(RunPaths(run_dir).checkpoints.iterdir())
    except OSError:
        return False


def reopen_run(paths: RunPaths) -> None:
    """Prepare the run directory of a preempted trial for its next part; raises ``HistoryError``.

    zeusrun's files of the earlier part move into ``part<number>``, so that no old event, clock or
    failure is read as a new one. Those of the script stay where it may look for them.
    """
    with writes_to(paths.run_dir):
        present = list(paths.run_dir.iterdir())
        names = {path.name for path in present}
        # Not the number of preemptions: an earlier submit may have died here.
        unused = next(name for n in itertools.count(1) if (name := f"part{n}") not in names)
        earlier = paths.run_dir / unused
        earlier.mkdir(mode=0o700)
        for path in present:
            if _MOVED.fullmatch(path.name):
                path.rename(earlier / path.name)
        for folder in (paths.logs, paths.clocks, paths.checkpoints):
            folder.mkdir(mode=0o700, exist_ok=True)


def earlier_parts(paths: RunPaths) -> list[RunPaths]:
    """Return the files of the parts of a trial before its last preemption, oldest first."""
    try:
        names = [path.name for path in paths.run_dir.iterdir() if _PART.fullmatch(path.name)]
    except OSError:
        return []
    return [
        RunPaths(paths.run_dir / name) for name in sorted(names, key=lambda name: int(name[4:]))
    ]


def numbered_runs(home: Path, job: str) -> list[tuple[int | None, str]]:
    """Return the recurrence and name of each run directory of a job; ``None``: began offline."""
    pattern = re.compile(re.escape(job) + r"-(?:(\d{1,18})-\d+|offline-[0-9a-f]{8})")
    try:
        with os.scandir(runs_directory(home, job)) as entries:
            found = [pattern.fullmatch(entry.name) for entry in entries]
    except OSError:
        return []
    return [(None if match[1] is None else int(match[1]), match[0]) for match in found if match]


_VERSION = 1  # of the run directory with all its files
_RESERVE_BYTES = 64 << 10  # 40 epochs take about 3 KiB, 600 epochs 40 KiB
_MAX_BYTES = 256 << 20  # a script may put anything in its place
_UNREADABLE = (
    *(OSError, ValueError, TypeError, AttributeError),
    *(LookupError, ArithmeticError, RecursionError),
)


def reserve_record(paths: RunPaths, trial: Trial) -> None:
    """Write the dispatched trial, and reserve space for its outcome; raises ``OSError``."""
    write_file(paths.trial, _encode(trial))
    with _open(paths, os.O_TRUNC) as file:
        file.write(b" " * _RESERVE_BYTES)
        file.flush()
        os.fsync(file.fileno())


def write_record(paths: RunPaths, trial: Trial) -> bool:
    """Replace the dispatched trial by the finished one; return whether it could be written."""
    content = _encode(trial)
    try:
        with _open(paths) as file:
            file.write(content)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        paths.reserve.replace(paths.trial)
    except OSError:
        with contextlib.suppress(OSError):
            paths.reserve.unlink()
        return False
    return True


def read_record(paths: RunPaths) -> Trial | None:
    """Return the trial that a run directory contains; ``None`` if it cannot be read.

    Raises:
        HistoryError: If a newer zeusrun has written it.
    """
    try:
        record = json.loads(read_file(paths.trial, _MAX_BYTES))
        check_version(record, _VERSION, paths.trial)
        return Trial.from_json(record)
    except _UNREADABLE:
        return None


def read_outcome(paths: RunPaths) -> Outcome | None:
    """Return the outcome that a launcher wrote here; ``None`` if there is none."""
    trial = read_record(paths)
    return None if trial is None or not trial.status.finished else trial.outcome


def has_begun(paths: RunPaths) -> bool:
    """Whether a run directory contains anything worth keeping. A link counts as begun."""
    ran = (paths.sidecar, paths.torchrun_log, paths.run_dir / "part1")
    if paths.run_dir.is_symlink() or any(path.exists() for path in ran):
        return True
    trial = read_record(paths)
    return trial is not None and (trial.status.finished or trial.preemptions > 0)


@dataclass(frozen=True)
class Live:
    """A running trial at one moment, for ``status`` and for recovery; ``None`` is unknown."""

    trial: Trial  # dispatched, with its time, energy, epochs and curve so far
    pid: int | None  # of its launcher
    host: str | None  # on which it runs
    updated_at: str | None  # RFC 3339
    power_w: float | None = None  # now
    preempted: bool = False  # a scheduler is ending it
    sight: TrainingSummary | None = None  # what was seen of the training
    alive: bool = True  # whether its launcher is; not stored

    @property
    def last_metric(self) -> float | None:
        """The metric as last reported; ``None`` before that, or if it was not finite."""
        return self.trial.curve[-1].value if self.trial.curve else None

    def is_of(self, trial: Trial) -> bool:
        """Whether it is the state of a trial, perhaps written before the trial had its number."""
        return self.trial.trial == trial.trial or self.trial.uuid == trial.uuid

    def to_json(self) -> dict[str, Any]:
        """Return the trial's JSON, and what is known only while it runs."""
        names = ("alive", "pid", "host", "updated_at", "power_w")
        fields = {name: getattr(self, name) for name in names}
        return {**self.trial.to_json(), **fields, "last_metric": self.last_metric}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Live | None:
        """Read what ``to_json`` returned, or ``live.json``; ``None`` if it cannot be read."""
        try:
            power_w, sight = record.get("power_w"), record.get("sight")
            return cls(
                Trial.from_json(record),
                None if record["pid"] is None else int(record["pid"]),
                None if record["host"] is None else str(record["host"]),
                None if record["updated_at"] is None else str(record["updated_at"]),
                power_w if power_w is None or math.isfinite(power_w) else None,
                record.get("preempted") is True,
                TrainingSummary.from_json(sight) if sight else None,
            )
        except _UNREADABLE:
            return None


def write_live(paths: RunPaths, live: Live) -> None:
    """Replace ``live.json``, unsynced; if that fails, the old one stays."""
    with contextlib.suppress(OSError):
        more = {"preempted": live.preempted, "sight": live.sight and live.sight.to_json()}
        record = {"version": _VERSION, **live.to_json(), **more}
        replace_file(paths.live, json.dumps(record).encode(), durable=False)


def read_live(paths: RunPaths) -> Live | None:
    """Return the last state that a launcher wrote; ``None`` if it cannot be read.

    Raises:
        HistoryError: If a newer zeusrun has written it.
    """
    try:
        record = json.loads(read_file(paths.live, _MAX_BYTES))
        check_version(record, _VERSION, paths.live)
    except _UNREADABLE:
        return None
    return Live.from_json(record)


def _open(paths: RunPaths, flags: int = 0) -> BinaryIO:
    descriptor = open_for_writing(paths.reserve, os.O_WRONLY | os.O_CREAT | flags)
    return open(descriptor, "wb")  # noqa: PTH123 - a descriptor


def _encode(trial: Trial) -> bytes:
    return json.dumps({"version": _VERSION, **trial.to_json()}, indent=1).encode() + b"\n"
