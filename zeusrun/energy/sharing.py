"""Whether processes of others compute on the job's devices."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from zeusrun.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.energy.device import Device
    from zeusrun.energy.foreign import ForeignProcesses

PERIOD_S = 1.0
# A process that ends between being listed and being checked makes one check useless. After this
# many useless checks in a row, sharing is unknown.
_UNSURE_CHECKS = 3
# Foreign processes count if two checks in a row find any, or _FOUND_CHECKS of the last few do.
_LAST_CHECKS = 5
_FOUND_CHECKS = 3


class Sharing:
    """Checks about once a second which processes compute on the devices.

    Foreign processes count once two checks in a row, or three of the last five, have found any, not
    always the same. A process that only the first check finds does not count: it may belong to an
    earlier run that is about to end.

    Attributes:
        shared: ``True`` once foreign processes are found; ``None`` while unknown.
        asked: The device that is being read now; ``None`` for none.
    """

    def __init__(
        self, devices: Sequence[Device], names: Sequence[str], foreign: ForeignProcesses | None
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            devices: All devices of the job.
            names: Their names for messages.
            foreign: Finds the foreign processes; ``None`` to check nothing.
        """
        self.shared: bool | None = None
        self.asked: str | None = None
        self._foreign = foreign
        self._gpus = [
            (name, device)
            for name, device in zip(names, devices, strict=True)
            if device.is_gpu and foreign is not None
        ]
        self._due_s: float | None = None
        self._unsure = 0
        self._found_first: frozenset[int] | None = None
        self._found_any: deque[bool] = deque(maxlen=_LAST_CHECKS)

    def check(self, time_s: float) -> str | None:
        """Check, if a second has passed since the last check.

        Args:
            time_s: Now, in monotonic seconds.

        Returns:
            A warning for the user once foreign processes are found.
        """
        if self.shared or self._foreign is None or not self._gpus:
            return None
        if self._due_s is not None and time_s < self._due_s:
            return None
        self._due_s = time_s + PERIOD_S
        listed = {name: self._ask(name, device) for name, device in self._gpus}
        known = [pids for pids in listed.values() if pids is not None]
        verdict = self._foreign.check(frozenset[int]().union(*known) if known else None)
        if known and self._count(self._foreign.found):
            verdict = True
        elif verdict or len(known) < len(listed):
            verdict = None
        self._unsure = self._unsure + 1 if verdict is None else 0
        if self._unsure < _UNSURE_CHECKS:
            self.shared = self.shared if verdict is None else verdict
        else:
            self.shared = None
        return self._describe(listed) if self.shared else None

    def _count(self, found: frozenset[int]) -> bool:
        """Add the foreign processes of a check; return whether they make the run shared."""
        if self._found_first is None:
            self._found_first = found
            return False
        before = bool(found & self._found_first) if not self._found_any else self._found_any[-1]
        self._found_any.append(bool(found))
        return bool(found) and (before or sum(self._found_any) >= _FOUND_CHECKS)

    def _ask(self, name: str, device: Device) -> frozenset[int] | None:
        self.asked = name
        try:
            return device.compute_processes()
        except DeviceError:  # it is read ten times a second, and that warns the user
            return None
        finally:
            self.asked = None

    def _describe(self, listed: dict[str, frozenset[int] | None]) -> str:
        found = frozenset[int]() if self._foreign is None else self._foreign.found
        where = [
            f"{', '.join(map(str, sorted(pids & found)))} on {name}"
            for name, pids in listed.items()
            if pids is not None and pids & found
        ]
        return f"processes of others compute on this job's GPUs: {'; '.join(where)}"
