"""Whether processes that are not the job's compute on its devices."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from zeusrun.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.energy.device import Device
    from zeusrun.energy.foreign import ForeignProcesses

PERIOD_S = 1.0
# A process that ends between being listed and being looked at makes one look say nothing. So many
# in a row say that it cannot be told (any more).
_UNSURE_LOOKS = 3
# Foreign processes count if two looks in a row find any, or so many of the last few do.
_LAST_LOOKS = 5
_FOUND_LOOKS = 3


class Sharing:
    """Asks devices about once a second who computes on them.

    Foreign processes count once two looks in a row have found any, not always the same, or three
    of the last five. What only the first look finds counts for nothing: an earlier run may be on
    its way out.

    Attributes:
        shared: ``True`` once foreign processes are found; ``None`` while it cannot be told.
        asked: Which device is being asked right now; ``None`` between two questions.
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
        self._found_any: deque[bool] = deque(maxlen=_LAST_LOOKS)

    def look(self, time_s: float) -> str | None:
        """Ask, if it is time to.

        Args:
            time_s: Now, in monotonic seconds.

        Returns:
            A sentence for the user once foreign processes are found.
        """
        if self.shared or self._foreign is None or not self._gpus:
            return None
        if self._due_s is not None and time_s < self._due_s:
            return None
        self._due_s = time_s + PERIOD_S
        listed = {name: self._ask(name, device) for name, device in self._gpus}
        told = [pids for pids in listed.values() if pids is not None]
        verdict = self._foreign.look(frozenset[int]().union(*told) if told else None)
        if told and self._count(self._foreign.found):
            verdict = True
        elif verdict or len(told) < len(listed):
            verdict = None
        self._unsure = self._unsure + 1 if verdict is None else 0
        if self._unsure < _UNSURE_LOOKS:
            self.shared = self.shared if verdict is None else verdict
        else:
            self.shared = None
        return self._describe(listed) if self.shared else None

    def _count(self, found: frozenset[int]) -> bool:
        """Take the foreign processes of a look; return whether they make the run shared."""
        if self._found_first is None:
            self._found_first = found
            return False
        before = bool(found & self._found_first) if not self._found_any else self._found_any[-1]
        self._found_any.append(bool(found))
        return bool(found) and (before or sum(self._found_any) >= _FOUND_LOOKS)

    def _ask(self, name: str, device: Device) -> frozenset[int] | None:
        self.asked = name
        try:
            return device.compute_processes()
        except DeviceError:  # it is read ten times a second, which tells the user
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
        return f"others compute on this job's GPUs, too: process {'; '.join(where)}"
