"""The step clock: a memory-mapped file of 24 bytes in which a rank counts optimizer steps."""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.files.private import open_for_writing, read_file
from zeusrun.sidecar.events import is_moment

if TYPE_CHECKING:
    from pathlib import Path

_CLOCK = struct.Struct("=Qdd")


@dataclass(frozen=True)
class StepCount:
    """How far a rank is: optimizer steps, monotonic seconds of the first and the last one."""

    steps: int
    first_step_t: float
    last_step_t: float


class StepClock:
    """Counts the optimizer steps of a rank without system calls, also after a restart."""

    def __init__(self, path: Path | str) -> None:
        descriptor = open_for_writing(path, os.O_RDWR | os.O_CREAT)
        try:
            # A hole in the file would be a SIGBUS on a full disk.
            os.posix_fallocate(descriptor, 0, _CLOCK.size)
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
    """Return the count of a rank; ``None`` before its first step or if it cannot be read now."""
    try:
        content = read_file(path, _CLOCK.size)
    except OSError:
        return None
    if len(content) < _CLOCK.size:
        return None
    count = StepCount(*_CLOCK.unpack(content))
    sound = is_moment(count.first_step_t) and is_moment(count.last_step_t)
    return count if sound and 0 < count.steps < 1 << 53 else None
