"""The files that worker and launcher share: metric events and the optimizer-step clock.

``metrics.jsonl`` holds one JSON object a line, ``{"v": 1, "event": ..., "t": ..., ...}``. Every
rank appends with a single ``write`` to a descriptor opened with ``O_APPEND``, so lines of several
ranks do not mix on a local file system. ``t`` is ``time.monotonic()``, one clock for all processes
of a host, so that an event can be laid over the launcher's power samples.

A step clock is 24 bytes of memory-mapped file for each rank: the launcher sees training advance
without the worker making a single system call.
"""

from __future__ import annotations

import errno
import json
import math
import mmap
import os
import stat
import struct
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from zeusrun.private_files import open_for_reading, open_for_writing, read_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VERSION = 1
CHOICES = frozenset({"batch_size", "learning_rate"})
ENDING = b"ending"  # in the stop file, once zeusrun ends the ranks and does not just ask
MAX_LINE_BYTES = 8 << 20
MAX_WARNINGS = 5
_CHUNK_BYTES = 256 << 10


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


class LineTail:
    """Follows a file that others append to, truncate, replace or have yet to create."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self._pending = b""
        self._skipping = False

    def read_lines(self, *, final: bool = False) -> list[bytes]:
        """Return the next complete lines, without their newline; none when there are none yet.

        Reads at most 256 KiB a call, so that a log of gigabytes passes through in pieces.

        Args:
            final: Nothing more will be written: at the end return an unfinished last line, too.

        Raises:
            OSError: If the file exists and cannot be read.
        """
        lines: list[bytes] = []
        try:
            descriptor = open_for_reading(self._path)
        except FileNotFoundError:
            return self._take_pending(lines, final=final)
        try:
            self._look_at(os.fstat(descriptor))
            while not lines and (chunk := os.pread(descriptor, _CHUNK_BYTES, self._offset)):
                self._offset += len(chunk)
                self._split(chunk, lines)
        finally:
            os.close(descriptor)
        return lines or self._take_pending(lines, final=final)

    def skip_backlog(self, keep_bytes: int) -> int:
        """Pass over what is too much to read; return how many bytes, none if less is waiting.

        Args:
            keep_bytes: How much of the end to keep; reading goes on with its first whole line.

        Raises:
            OSError: If the file exists and cannot be looked at.
        """
        try:
            status = self._path.lstat()
        except FileNotFoundError:
            return 0
        if not stat.S_ISREG(status.st_mode):  # counts as missing
            return 0
        self._look_at(status)
        skipped = max(0, status.st_size - self._offset - keep_bytes)
        if skipped:
            self._offset += skipped
            self._pending, self._skipping = b"", True
        return skipped

    def _look_at(self, status: os.stat_result) -> None:
        """Begin anew with a file that is another one, or shorter than what was read of it."""
        identity = (status.st_dev, status.st_ino)
        if identity != self._identity or status.st_size < self._offset:
            self._identity, self._offset = identity, 0
            self._pending, self._skipping = b"", False

    def _split(self, chunk: bytes, lines: list[bytes]) -> None:
        head, *rest = chunk.split(b"\n")
        self._pending += head
        for part in rest:
            if not self._skipping:
                lines.append(self._pending)
            self._pending, self._skipping = part, False
        if len(self._pending) > MAX_LINE_BYTES:
            lines.append(self._pending[:200])
            self._pending, self._skipping = b"", True
        elif self._skipping:
            self._pending = b""

    def _take_pending(self, lines: list[bytes], *, final: bool) -> list[bytes]:
        if final and self._pending and not self._skipping:
            lines.append(self._pending)
            self._pending = b""
        return lines


@dataclass
class EventReader:
    """Tails a sidecar and returns its events; bad lines become warnings, never exceptions.

    Attributes:
        path: The sidecar; it need not exist yet.
        warnings: One sentence for each of the first bad lines.
        bad_lines: How many lines were not events.
    """

    path: Path
    warnings: list[str] = field(default_factory=list)
    bad_lines: int = 0
    _line_number: int = 0
    _tail: LineTail | None = None

    def read(self, *, final: bool = False) -> list[Event]:
        """Return the events since the last call; ``final`` once the writers are gone.

        Raises:
            OSError: If the sidecar exists and cannot be read.
        """
        if self._tail is None:
            self._tail = LineTail(self.path)
        events: list[Event] = []
        while lines := self._tail.read_lines(final=final):
            for raw in lines:
                event = self._decode(raw)
                if event is not None:
                    events.append(event)
        return events

    def _decode(self, raw: bytes) -> Event | None:
        self._line_number += 1
        line = raw.replace(b"\0", b"").strip()  # a crash can leave holes that read as NUL
        if not line:
            return None
        try:
            return decode_event(line)
        except ValueError as error:
            self._warn(str(error))
            return None

    def _warn(self, reason: str) -> None:
        self.bad_lines += 1
        if self.bad_lines <= MAX_WARNINGS:
            self.warnings.append(f"{self.path.name}:{self._line_number}: {reason}; line ignored")
        elif self.bad_lines == MAX_WARNINGS + 1:
            self.warnings.append(f"{self.path.name}: more lines are not events; all were ignored")


# Asks a rank for its stacks. One of the real-time signals, which no library that trains uses, while
# Slurm and Lightning use SIGUSR1 and SIGUSR2. As a number, because importing signal would take a
# rank as long as all the rest of this; None on a system that has no such signals.
STACK_SIGNAL: int | None = 57 if sys.platform == "linux" else None

_CLOCK = struct.Struct("=Qdd")


@dataclass(frozen=True)
class StepCount:
    """How far a rank is: optimizer steps, monotonic seconds of the first and the last one."""

    steps: int
    first_step_t: float
    last_step_t: float


class StepClock:
    """Counts optimizer steps into a memory-mapped file, and goes on where a restart left off.

    ``tick`` is called after every optimizer step of a training, so it does three stores and
    nothing else.
    """

    def __init__(self, path: Path | str) -> None:
        descriptor = open_for_writing(path, os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(
                descriptor, 0, _CLOCK.size
            )  # a hole would be a SIGBUS on a full disk
            self._map = mmap.mmap(descriptor, _CLOCK.size)
        finally:
            os.close(descriptor)
        view = memoryview(self._map)
        self._steps = view[:8].cast("Q")
        self._times = view[8:].cast("d")
        if self._steps[0] == 0:
            self._times[0] = 0.0

    def tick(self) -> None:
        """Count one step now."""
        now = time.monotonic()
        times = self._times
        if times[0] == 0.0:
            times[0] = now
        times[1] = now
        self._steps[0] += 1


def read_step_clock(path: Path) -> StepCount | None:
    """Return what the rank has counted; ``None`` before its first step and of what is no clock.

    ``None`` as well where the disk refuses: a clock is read ten times a second, and what it says
    next holds.
    """
    try:
        content = read_file(path, _CLOCK.size)
    except OSError:
        return None
    if len(content) < _CLOCK.size:
        return None
    count = StepCount(*_CLOCK.unpack(content))
    sound = _is_moment(count.first_step_t) and _is_moment(count.last_step_t)
    return count if sound and 0 < count.steps < 1 << 53 else None
