"""GPUs looked at again and again: what they draw now, in the last minute and since the start."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.energy.device import Health, Reading
from zeusrun.energy.device_energy import EnergyTrack
from zeusrun.gpu.snapshot import read_status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.gpu.snapshot import GpuStatus, OpenGpu
    from zeusrun.trial import EnergySource

REMEMBERED_S = 60.0
MOST_BETWEEN_LOOKS_S = 1.0
"""Sampled power says nothing of a longer silence, and a GPU that misses one look is not lost."""
_MAX_REMEMBERED = 600


@dataclass(frozen=True)
class WatchedGpu:
    """A GPU as the latest look found it.

    Attributes:
        status: What it does now.
        recent: Seconds ago and watts of the last minute, oldest first; ``None`` where it did not
            tell.
        energy_j: Joules since the watch began; ``None`` if unknown.
        energy_source: Where they come from; ``None`` if they are unknown.
        note: The latest sentence on what became of its energy; ``None`` for none.
    """

    status: GpuStatus
    recent: tuple[tuple[float, float | None], ...]
    energy_j: float | None
    energy_source: EnergySource | None
    note: str | None = None


class GpuWatch:
    """Remembers the last minute of every GPU, and adds up its energy.

    What is kept is bounded, however long it goes on.
    """

    def __init__(self, gpus: Sequence[OpenGpu], held_by: Callable[[str], str | None]) -> None:
        """Prepare; nothing is read yet.

        Args:
            gpus: To be watched.
            held_by: See ``read_status``.
        """
        self._gpus = tuple(gpus)
        self._held_by = held_by
        self._tracks = [
            None
            if (device := gpu.device) is None
            else EnergyTrack(device.model, device.energy_source, device.max_power_w)
            for gpu in gpus
        ]
        self._recent: list[deque[tuple[float, float | None]]] = [
            deque(maxlen=_MAX_REMEMBERED) for _ in gpus
        ]
        self._notes: list[str | None] = [None for _ in gpus]
        self._began_s: float | None = None

    def look(self, now_s: float) -> list[WatchedGpu]:
        """Look at every GPU; wait for at most ``MOST_BETWEEN_LOOKS_S`` between two looks.

        Args:
            now_s: Monotonic second, later than at the last look.
        """
        began_s = self._began_s = now_s if self._began_s is None else self._began_s
        watched = []
        for place, (gpu, track, recent) in enumerate(
            zip(self._gpus, self._tracks, self._recent, strict=True)
        ):
            status = read_status(gpu, self._held_by)
            recent.append((now_s, status.power_w))
            while recent[0][0] < now_s - REMEMBERED_S:
                recent.popleft()
            energy_j, source = None, None
            if track is not None:
                for sentence in _add(track, now_s, status):
                    self._notes[place] = sentence
                energy_j = track.energy_j(began_s, now_s)
                source = track.source
            ages = tuple((now_s - time_s, power_w) for time_s, power_w in recent)
            watched.append(WatchedGpu(status, ages, energy_j, source, self._notes[place]))
        return watched


def _add(track: EnergyTrack, now_s: float, status: GpuStatus) -> tuple[str, ...]:
    if status.error is not None:
        return track.miss(now_s, status.error)
    health = Health(utilization=status.utilization)
    reading = Reading(status.energy_j, status.power_w, status.power_limit_w, health)
    return track.add(now_s, reading)
