"""The step clock: a memory-mapped file in which a rank counts optimizer steps.

It also says where in the training the rank has printed: at each step that follows some output, or
begins a pass over the data, it notes how long the log is, and how far the training was before it.
Hooks of data loaders add the seconds for which the training waited for a batch.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from zeusrun.clock import is_moment
from zeusrun.files.private import open_for_writing, read_file

if TYPE_CHECKING:
    from pathlib import Path

_NOTES = 128  # newest ones; the launcher reads them ten times a second
_HEAD, _NOTE = struct.Struct("=QddQQQQQdd"), struct.Struct("=QdQQQQ")
_SIZE = _HEAD.size + _NOTES * _NOTE.size
_TRIES = 3  # to read while no step is counted
_MAX_COUNT = 1 << 53


class Place(NamedTuple):
    """How far a rank is at a moment."""

    t: float  # monotonic seconds
    steps: int
    samples: int  # of all ranks, since the last restart; 0 if unknown
    passes: int  # begun over the data loader that feeds the steps, also before a restart
    others: int  # begun over other loaders


@dataclass(frozen=True)
class StepCount:
    """How far a rank is: optimizer steps, monotonic seconds of the first and the last one.

    A training without an optimizer of torch has none; its times are those of backward passes.
    """

    steps: int
    first_step_t: float
    last_step_t: float
    samples: int = 0  # as in ``Place``
    passes: int = 0
    others: int = 0
    # Bytes of the log, and the place before the step that followed them, with that step's moment.
    notes: tuple[tuple[int, Place], ...] = ()
    uncounted: int = 0  # steps of other optimizers, and backward passes
    # Seconds since the first step in which no batch was there: of the loaders that feed the steps,
    # and of other ones, such as that of an evaluation; ``None``: unknown.
    waits_s: tuple[float | None, float | None] = (0.0, 0.0)

    @property
    def place(self) -> Place:
        """The place after the last step."""
        return Place(self.last_step_t, self.steps, self.samples, self.passes, self.others)


class StepClock:
    """Counts the optimizer steps of a rank, also after a restart.

    Attributes:
        waits_s: See ``StepCount``; whoever waits adds to it. Infinity: unknown.
    """

    def __init__(self, path: Path | str) -> None:
        descriptor = open_for_writing(path, os.O_RDWR | os.O_CREAT)
        try:
            # A hole in the file would be a SIGBUS on a full disk.
            os.posix_fallocate(descriptor, 0, _SIZE)
            self._map = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        view = memoryview(self._map)
        self._counts = view.cast("Q")
        self._times = view[8:24].cast("d")
        self.waits_s: Any = view[_HEAD.size - 16 : _HEAD.size].cast("d")
        self._counts[3] = 0  # samples since a restart
        self._passes = self._others = self._log_bytes = 0
        folder = os.path.dirname(os.path.dirname(os.path.abspath(path)))  # noqa: PTH100, PTH120
        self._log: os.stat_result | None = None
        with contextlib.suppress(OSError):
            self._log = os.stat(os.path.join(folder, "logs", "rank0.log"))  # noqa: PTH116, PTH118

    def tick(
        self, samples: int = 0, passes: int = 0, others: int = 0, *, counts: bool = True
    ) -> None:
        """Take in a step now.

        Args:
            samples: That all steps have consumed, this one included; 0 if unknown.
            passes: Over the training loader in this process; another number is another pass.
            others: Passes over other loaders in this process.
            counts: Whether it is a step of its own, not that of another optimizer, and no backward
                pass.
        """
        now = time.monotonic()
        count, times = self._counts, self._times
        try:
            log_bytes = os.lseek(1, 0, os.SEEK_CUR)  # a fifth of a microsecond
        except OSError:  # the script's own pipe
            log_bytes = self._log_bytes
        if log_bytes > self._log_bytes and not self._is_log(1):
            log_bytes = self._log_bytes
        if log_bytes > self._log_bytes or passes != self._passes:
            self._log_bytes = max(log_bytes, self._log_bytes)
            at = _HEAD.size + count[6] % _NOTES * _NOTE.size
            place = (count[0], count[3], count[4], count[5] + others - self._others)
            _NOTE.pack_into(self._map, at, self._log_bytes, now, *place)
            count[6] += 1
        if times[0] == 0.0 or counts > count[0]:  # the first step, whatever came before
            times[0] = now
        times[1] = now
        count[3] = samples
        if passes != self._passes:
            count[4] += 1
        count[5] += others - self._others
        self._passes, self._others = passes, others
        count[0] += counts
        count[7] += not counts

    def exchange(
        self, part: tuple[int, float, int, float, float] | None
    ) -> tuple[int, float, int, float, float]:
        """Return steps, moment of the first, passes and waits; with ``part``, go on from these."""
        count, times, waits_s = self._counts, self._times, self.waits_s
        if part is not None:
            count[0], times[0], count[4], waits_s[0], waits_s[1] = part
        return int(count[0]), float(times[0]), int(count[4]), waits_s[0], waits_s[1]

    def _is_log(self, descriptor: int) -> bool:
        """Whether it is the log of rank 0: a script may send what it prints elsewhere."""
        return self._log is None or os.path.samestat(os.fstat(descriptor), self._log)


def read_step_clock(path: Path) -> StepCount | None:
    """Return the count of a rank; ``None`` before its first one or if it cannot be read now."""
    before, content = None, b""
    try:
        for _ in range(_TRIES):
            before, content = content, read_file(path, _SIZE)
            if content == before:  # no step was counted while it was read
                break
    except OSError:
        return None
    if len(content) < _SIZE:
        return None
    steps, first_t, last_t, samples, passes, others, made, uncounted, *waits_s = _HEAD.unpack_from(
        content
    )
    most = max(steps, samples, passes, others, made, uncounted)
    if not (
        is_moment(first_t) and is_moment(last_t) and steps + uncounted > 0 and most < _MAX_COUNT
    ):
        return None
    notes = []
    for number in range(max(0, made - _NOTES + 1), made):  # the oldest may be replaced now
        at = _HEAD.size + number % _NOTES * _NOTE.size
        log_bytes, t, *counts = _NOTE.unpack_from(content, at)
        if is_moment(t) and max(log_bytes, *counts) < _MAX_COUNT:
            notes.append((log_bytes, Place(t, *counts)))
    counted = steps, first_t, last_t, samples, passes, others
    training_s, other_s = (s if 0 <= s < _MAX_COUNT else None for s in waits_s)
    return StepCount(*counted, tuple(notes), uncounted, (training_s, other_s))
