"""The protocol of a device, and the values that it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from zeusrun.errors import DeviceError

if TYPE_CHECKING:
    from zeusrun.trial import EnergySource

_SAME_LIMIT_W = 0.5


@dataclass(frozen=True)
class Health:
    """Sensors of a device other than power and energy. ``None`` is unknown.

    ``utilization`` is the share of the last sampling period in which it computed, 0 to 1.
    ``throttle_reasons`` are NVML's names, such as ``sw_power_cap``; empty if nothing limits clocks.
    """

    utilization: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    throttle_reasons: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Reading:
    """One reading of one device. ``None`` is unknown.

    ``energy_j`` is cumulative, with an arbitrary origin; ``power_w`` is the power now, averaged
    over at most about a second; ``power_limit_w`` is the limit in force. ``t`` is the monotonic
    second of a reading of another host; ``None``: now.
    """

    energy_j: float | None
    power_w: float | None
    power_limit_w: float | None
    health: Health | None = None
    t: float | None = None


class Device(Protocol):
    """A device whose energy counts as a job's."""

    @property
    def uuid(self) -> str:
        """Name that stays the same over reboots; the name to store."""

    @property
    def model(self) -> str:
        """Product name, for people and as a key of the history."""

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""

    @property
    def max_power_w(self) -> float | None:
        """The most it may draw; ``None`` if unknown."""

    @property
    def energy_source(self) -> EnergySource:
        """The best source that it claims to have; a monitor may find that the source is wrong."""

    @property
    def caveat(self) -> str | None:
        """A sentence if it measures more than the job's share (a MIG instance); else ``None``."""

    def compute_processes(self) -> frozenset[int] | None:
        """Return the ids of the processes that compute on it; ``None`` if unknown.

        They may be of another pid namespace: see ``energy.sharing``. It raises as ``read`` does.
        """

    def read(self) -> Reading:
        """Read the device now, or raise a ``DeviceError`` if it does not answer."""

    def close(self) -> None:
        """Close the device. More than once is fine."""


@runtime_checkable
class LimitableDevice(Device, Protocol):
    """A device of a kind that has a power limit. Each method raises ``DeviceError`` on failure."""

    def power_limit_range_w(self) -> tuple[float, float] | None:
        """Return the lowest and the highest limit; ``None`` if this device cannot be limited."""

    def power_limit_w(self) -> float | None:
        """Return the limit in force, read now; ``None`` if the device does not report it."""

    def set_power_limit_w(self, watts: float) -> None:
        """Set the limit; it stays. Raise a ``LimitRefusedError`` if permission is missing."""


def name_of(device: Device) -> str:
    """Return the name of a device for messages."""
    return f"{device.model} ({device.uuid})"


def is_same_limit(one_w: float, other_w: float) -> bool:
    """Whether two values are the same limit: a driver may round a limit."""
    return abs(one_w - other_w) < _SAME_LIMIT_W


def check_power_limit(name: str, watts: float, range_w: tuple[float, float] | None) -> None:
    """Raise a ``DeviceError`` if the device ``name``, with this range, cannot hold a limit."""
    if range_w is None:
        raise DeviceError(f"{name} has no power limit to set; use power_limit: {{mode: observe}}")
    low_w, high_w = range_w
    if not low_w <= watts <= high_w:  # NaN fails too
        raise DeviceError(
            f"{name} cannot be limited to {watts:g} W; choose between {low_w:g} and {high_w:g} W"
        )
