"""The devices of other hosts and their power limits: node launchers read and hold them."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zeusrun.energy.device import Health, Reading
from zeusrun.errors import DeviceError, LaunchError, ZeusrunError
from zeusrun.lever import POWER, Lever
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Self

    from zeusrun.energy.device import Device
    from zeusrun.energy.sharing import Sharing
    from zeusrun.gpu.power_limits.holder import LimitHolder
    from zeusrun.run_on.hosts.channel import Channel, Message

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
            text = sharing and sharing.look(self.devices, time.monotonic())
            if text:
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


class RemoteLimits:
    """The power limits of another host, which its launcher holds; see ``LimitHolder``."""

    def __init__(self, host: str, call: Callable[..., Message]) -> None:
        """Prepare; ``call`` asks the node launcher, and returns its answer."""
        self._host, self._call = host, call
        self.levers: tuple[Lever, ...] | None = None  # ``None``: it has no GPU to limit
        self.refused: str | None = None
        self.taken: str | None = None

    def take(self, state: Mapping[str, Any]) -> None:
        """Take the state of the limits there."""
        watts = state["levers"]
        self.levers = None if watts is None else tuple(Lever(POWER, each) for each in watts)
        self.refused, self.taken = (
            None if text is None else f"host {self._host}: {text}"
            for text in (state["refused"], state["taken"])
        )

    def enter(self, mode: str) -> None:
        """Let the node take the locks of its GPUs; ``mode`` is ``power_limit.mode``."""
        self.take(self._call("hold_limits", mode=mode))

    def set(self, watts: float | None, trial: str | None) -> None:
        """Hold a limit for a trial, or check it without one; restore for ``None``."""
        if self.levers is not None:
            self.take(self._call("limit", watts=watts, trial=trial))


class JoinedLimits:
    """The power limits of all hosts as one ``LimitHolder``: a limit is held on each or on none.

    ``local`` is that of this host, ``None`` without a GPU to limit. The node launchers restore the
    limits of their hosts when the submit ends, also if the head or a node dies.
    """

    def __init__(
        self, local: LimitHolder | None, remote: Sequence[RemoteLimits], mode: str
    ) -> None:
        self._own, self._remote, self._mode = local, remote, mode
        self._unrestored: str | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:  # if a host is busy, nothing stays locked here
            if self._own is not None:
                stack.enter_context(self._own)
            for limits in self._remote:
                limits.enter(self._mode)
            stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        for limits in self._remote:
            try:
                limits.set(None, None)
            except ZeusrunError as failure:  # its launcher tries again when it ends
                self._unrestored = str(failure)
        if self._own is not None:
            self._own.__exit__(*error)

    @property
    def levers(self) -> tuple[Lever, ...]:
        """The limits that every GPU accepts, ascending."""
        found = [
            each.levers for each in (self._own, *self._remote) if each and each.levers is not None
        ]
        first = found[0] if found else ()
        return tuple(lever for lever in first if all(lever in each for each in found))

    @property
    def refused(self) -> str | None:
        """Why the limits are not changed, on the first host of which that is true."""
        return self._first("refused")

    @property
    def taken(self) -> str | None:
        """A sentence on a limit that somebody else has set meanwhile."""
        return self._first("taken")

    @property
    def unrestored(self) -> str | None:
        """What could not be restored."""
        return self._unrestored if self._own is None else self._own.unrestored or self._unrestored

    def _first(self, name: str) -> str | None:
        found = (getattr(each, name) for each in (self._own, *self._remote) if each is not None)
        return next((text for text in found if text is not None), None)

    def hold(self, lever: Lever, trial: str) -> None:
        """Hold a limit on every GPU; see ``LimitHolder.hold``."""
        try:
            if self._own is not None:
                self._own.hold(lever, trial)
            for limits in self._remote:
                limits.set(lever.value, trial)
        except ZeusrunError as error:
            with contextlib.suppress(DeviceError):
                self.restore()
            raise error if isinstance(error, DeviceError) else DeviceError(str(error)) from error

    def keep_guarded(self) -> None:
        """Keep the guard of this host running; the other launchers keep theirs."""
        if self._own is not None:
            self._own.keep_guarded()

    def check(self, lever: Lever) -> None:
        """Raise a ``DeviceError`` for a limit that cannot be set; change nothing."""
        if self._own is not None:
            self._own.check(lever)
        for limits in self._remote:
            limits.set(lever.value, None)

    def restore(self) -> None:
        """Restore the original limits everywhere; raises ``DeviceError``."""
        try:
            with contextlib.ExitStack() as stack:  # whatever fails, the others are restored
                if self._own is not None:
                    stack.callback(self._own.restore)
                for limits in self._remote:
                    stack.callback(limits.set, None, None)
        except LaunchError as error:
            raise DeviceError(str(error)) from error
