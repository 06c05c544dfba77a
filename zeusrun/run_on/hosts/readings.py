"""The devices of a node: its launcher reads them, and the head takes the readings for its own."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zeusrun.energy.device import Health, Reading, name_of
from zeusrun.errors import DeviceError
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

    from zeusrun.energy.device import Device
    from zeusrun.energy.sharing import Sharing
    from zeusrun.run_on.hosts.channel import Channel

_STALE_S = 3.0  # a device is read ten times a second
_JOIN_S = 1.0


class Sampler:
    """A thread that reads the devices and sends the readings. A context manager."""

    def __init__(self, channel: Channel, devices: list[Device], period_s: float = 0.1) -> None:
        self._channel, self.devices, self._period_s = channel, devices, period_s
        self.sharing: Sharing | None = None  # of the present run
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zeusrun-energy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join(_JOIN_S)

    def read(self) -> list[Any]:
        """Return the readings of all devices: an error is a text."""
        return [_read(device) for device in self.devices]

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            self._channel.send("readings", readings=self.read())
            sharing = self.sharing
            if sharing is not None and sharing.is_due(time.monotonic()):
                listed: dict[str, frozenset[int] | None] = {}
                for device in filter(lambda each: each.is_gpu, self.devices):
                    listed[name_of(device)] = None
                    with contextlib.suppress(DeviceError):
                        listed[name_of(device)] = device.compute_processes()
                if (text := sharing.check(listed)) is not None:
                    self._channel.send("warning", text=text)


def _read(device: Device) -> str | list[Any]:
    try:
        reading = device.read()
    except DeviceError as error:
        return str(error)
    health = reading.health and vars(reading.health)
    return [time.monotonic(), reading.energy_j, reading.power_w, reading.power_limit_w, health]


def describe_device(device: Device) -> dict[str, Any]:
    """Return what the head has to know of a device."""
    names = ("uuid", "model", "is_gpu", "max_power_w", "caveat")
    known = {name: getattr(device, name) for name in names}
    return {**known, "energy_source": device.energy_source.value}


class RemoteDevice:
    """A device of another host. Its node launcher reads it, and says whether others use it."""

    def __init__(self, host: str, described: Mapping[str, Any]) -> None:
        self.host = host
        self.is_gpu = bool(described["is_gpu"])
        self.uuid = str(described["uuid"]) if self.is_gpu else f"{host}/{described['uuid']}"
        self.model = str(described["model"])
        self.max_power_w: float | None = described["max_power_w"]
        self.energy_source = EnergySource(described["energy_source"])
        self.caveat: str | None = described["caveat"]
        self.is_metered = True  # ``False``: its energy cannot be added to that of the others
        self._last: Reading | str = f"host {host} has sent no reading"

    def take(self, reading: str | list[Any], to_own_time: Callable[[float], float]) -> None:
        """Take a reading of the node; a text says why there is none."""
        if isinstance(reading, str):
            self._last = f"host {self.host}: {reading}"
            return
        t, energy_j, power_w, limit_w, health = reading
        sensors = None if health is None else Health(**health)
        self._last = Reading(energy_j, power_w, limit_w, sensors, to_own_time(t))

    def compute_processes(self) -> frozenset[int]:
        """Return none: their ids are of another host, and its launcher checks them."""
        return frozenset()

    def read(self) -> Reading:
        """Return the last reading; raises ``DeviceError`` if there is none of the last second."""
        last = self._last
        if isinstance(last, str):
            raise DeviceError(last)
        if last.t is not None and time.monotonic() - last.t > _STALE_S:
            raise DeviceError(f"host {self.host} sends no readings")
        return last if self.is_metered else replace(last, energy_j=None, power_w=None)

    def power_limit_w(self) -> float | None:
        """Return the limit in force at the last reading; ``None`` if the device has none."""
        return self.read().power_limit_w

    def close(self) -> None:
        """Do nothing: the node closes the device."""
