"""Metric events: what ranks append to ``metrics.jsonl``.

The file holds one JSON object a line, ``{"v": 1, "event": ..., "t": ..., ...}``. Every rank
appends with a single ``write`` to a descriptor opened with ``O_APPEND``, so lines of several
ranks do not mix on a local file system. ``t`` is ``time.monotonic()``, one clock for all processes
of a host, so that an event can be laid over the launcher's power samples.
"""

from __future__ import annotations

import errno
import json
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from zeusrun.files.private import open_for_writing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VERSION = 1
SIDECAR_NAME = "metrics.jsonl"
CHOICES = frozenset({"batch_size", "learning_rate"})


@dataclass(frozen=True)
class Started:
    """A rank is about to run the script, for the first time or after so many restarts."""

    t: float
    rank: int
    pid: int
    restart: int = 0


@dataclass(frozen=True)
class Asked:
    """The script asked for a choice for the first time: ``batch_size`` or ``learning_rate``."""

    t: float
    choice: str


@dataclass(frozen=True)
class Reported:
    """Rank 0 reported metrics after an epoch; values may be NaN or infinite."""

    t: float
    epoch: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Ended:
    """The script of a rank returned or exited with ``code``; what follows is interpreter exit.

    ``grouped`` is false if the rank was never seen in a process group of ``torch.distributed``.
    """

    t: float
    rank: int
    code: int
    grouped: bool = True


Event: TypeAlias = Started | Asked | Reported | Ended


def encode_event(event: Event) -> bytes:
    """Return the event as one line of strict JSON, newline included."""
    record: dict[str, Any] = {"v": VERSION, "event": type(event).__name__.lower()}
    record.update(vars(event))
    if isinstance(event, Reported):
        # Strict JSON has no NaN; a string survives every reader, and float() takes it back.
        record["metrics"] = {
            name: value if math.isfinite(value) else str(value)
            for name, value in event.metrics.items()
        }
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def decode_event(line: bytes) -> Event | None:
    """Read one line.

    Returns:
        The event, or ``None`` for an event of a kind that this version does not know.

    Raises:
        ValueError: If the line is not an event; the message says why.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("not JSON") from error
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one error type for bad lines
    kind = record.get("event")
    if kind == "started":
        t = _number(record, "t")
        record.setdefault("restart", 0)
        return Started(t, *(_count(record, key) for key in ("rank", "pid", "restart")))
    if kind == "ended":
        t, rank, code = _number(record, "t"), _count(record, "rank"), _count(record, "code")
        return Ended(t, rank, code, record.get("grouped") is not False)
    if kind == "asked":
        asked = Asked(_number(record, "t"), str(record.get("choice")))
        return asked if asked.choice in CHOICES else None
    if kind == "reported":
        metrics = record.get("metrics")
        if not isinstance(metrics, dict):
            raise ValueError("'metrics' is not an object")
        values = {name: _metric(name, value) for name, value in metrics.items()}
        return Reported(_number(record, "t"), _count(record, "epoch"), values)
    if isinstance(kind, str):
        return None
    raise ValueError("no 'event' in it")


def _number(record: dict[str, Any], key: str) -> float:
    value = record.get(key)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = _float(value)
        if _is_moment(number):
            return number
    raise ValueError(f"{key!r} is not a finite number")


def _is_moment(seconds: float) -> bool:
    """Whether the difference to any other moment is a number; never for NaN."""
    return abs(seconds) < 1 << 53


def _count(record: dict[str, Any], key: str) -> int:
    value = record.get(key)
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise ValueError(f"{key!r} is not a whole number from 0")
    return value


def _metric(name: str, value: object) -> float:
    if isinstance(value, (int, float, str)):
        try:
            return _float(value)
        except ValueError:
            pass
    raise ValueError(f"metric {name!r} is not a number")


def _float(value: Any) -> float:  # noqa: ANN401 - what JSON holds
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf if value > 0 else -math.inf


class EventWriter:
    """Appends events to a sidecar. Safe to share a path between processes."""

    def __init__(self, path: Path | str) -> None:
        self._descriptor = open_for_writing(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._torn = False

    def write(self, event: Event) -> None:
        """Append one event with one ``write`` call.

        Raises:
            OSError: If the file system refuses.
        """
        line = (b"\n" if self._torn else b"") + encode_event(event)
        written = os.write(self._descriptor, line)
        self._torn = written < len(line)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
