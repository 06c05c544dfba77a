"""The trial in its own run directory: ``trial.json``, and ``live.json`` while it runs.

If the history cannot be written, the next submit reads the outcome from ``trial.json``. The file is
filled in advance, so that a full disk cannot prevent it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeusrun.files.private import (
    check_version,
    open_for_writing,
    read_file,
    replace_file,
    write_file,
)
from zeusrun.metrics.progress import TrainingSummary
from zeusrun.trial import Outcome, Trial

if TYPE_CHECKING:
    from typing import BinaryIO

    from zeusrun.launcher.rundir.layout import RunPaths

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
        own = {name: getattr(self, name) for name in names}
        return {**self.trial.to_json(), **own, "last_metric": self.last_metric}

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
        own = {"preempted": live.preempted, "sight": live.sight and live.sight.to_json()}
        record = {"version": _VERSION, **live.to_json(), **own}
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
