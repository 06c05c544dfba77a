"""Whether processes that are not the job's compute on its devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.gpu.device import Device
    from zeusrun.gpu.foreign import ForeignProcesses

PERIOD_S = 1.0
# A process that ends between being listed and being looked at makes one look say nothing. So many
# in a row say that it cannot be told (any more).
_UNSURE_LOOKS = 3


class Sharing:
    """Asks devices about once a second who computes on them.

    A foreign process counts once two looks in a row have found it: that of an earlier run may be
    on its way out.

    Attributes:
        shared: ``True`` once a foreign process is found; ``None`` while it cannot be told.
    """

    def __init__(
        self, devices: Sequence[Device], names: Sequence[str], foreign: ForeignProcesses | None
    ) -> None:
        """Prepare; nothing is asked yet.

        Args:
            devices: All that the job is billed for.
            names: What to call them.
            foreign: Tells foreign processes from the job's; ``None`` to ask nothing.
        """
        self.shared: bool | None = None
        self._foreign = foreign
        self._gpus = [
            (name, device)
            for name, device in zip(names, devices, strict=True)
            if device.is_gpu and foreign is not None
        ]
        self._due_s: float | None = None
        self._unsure = 0
        self._found_before = frozenset[int]()

    def look(self, time_s: float) -> str | None:
        """Ask, if it is time to.

        Args:
            time_s: Now, in monotonic seconds.

        Returns:
            A sentence for the user once a foreign process is found.
        """
        if self.shared or self._foreign is None or not self._gpus:
            return None
        if self._due_s is not None and time_s < self._due_s:
            return None
        self._due_s = time_s + PERIOD_S
        listed = {name: _compute_processes(device) for name, device in self._gpus}
        told = [pids for pids in listed.values() if pids is not None]
        verdict = self._foreign.look(frozenset[int]().union(*told) if told else None)
        found, self._found_before = self._foreign.found & self._found_before, self._foreign.found
        if verdict and not found:
            verdict = None
        self._unsure = self._unsure + 1 if verdict is None else 0
        if self._unsure < _UNSURE_LOOKS:
            self.shared = self.shared if verdict is None else verdict
        else:
            self.shared = None
        return self._describe(listed) if self.shared else None

    def _describe(self, listed: dict[str, frozenset[int] | None]) -> str:
        found = frozenset[int]() if self._foreign is None else self._foreign.found
        where = [
            f"{', '.join(map(str, sorted(pids & found)))} on {name}"
            for name, pids in listed.items()
            if pids is not None and pids & found
        ]
        return f"others compute on this job's GPUs, too: process {'; '.join(where)}"


def _compute_processes(device: Device) -> frozenset[int] | None:
    try:
        return device.compute_processes()
    except DeviceError:  # it is read ten times a second, which tells the user
        return None
