"""Holds power limits of GPUs while a job trains, and restores the original ones."""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING, Protocol

from zeusrun.energy.device import LimitableDevice, check_power_limit, is_same_limit, name_of
from zeusrun.errors import BusyError, DeviceError, LimitRefusedError
from zeusrun.gpu.power_limits.original_limits import (
    LimitLock,
    LimitRecord,
    put_back,
    read_record,
    record_path,
    set_limit,
    write_record,
)
from zeusrun.lever import POWER, Lever

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from zeusrun.energy.device import Device

# The steps between limits to try, and how many steps the range may have at most. With fewer steps
# the best limit lies between two; with more, neighbours differ by less than a probe can measure.
_STEPS_W = (5.0, 10.0, 25.0, 50.0, 100.0, 250.0)
_MOST_STEPS = 10
# A guard or a repair may hold the lock of a GPU for a moment.
_LOCK_TIMEOUT_S = 3.0
_RETRY_AFTER_S = 0.1


class Guard(Protocol):
    """A process that restores the limits on record when the launcher dies."""

    def is_alive(self) -> bool:
        """Whether it still runs."""

    def dismiss(self) -> None:
        """Let it exit, and wait until it has."""


class LimitHolder:
    """Holds the power limits of a job's GPUs and restores the original ones. A context manager.

    While the block runs, no other zeusrun of this machine changes a limit of these GPUs. Before the
    first limit is changed, the original limits are on disk, and a guard runs that outlives the
    launcher. On leaving the block the original limits are restored exactly.

    A limit that somebody else sets meanwhile stays: from then on nothing is changed.

    Attributes:
        refused: Why the limits are not changed; ``None`` if they may be changed.
        taken: A sentence on a limit that somebody else has set meanwhile; ``None`` for none.
        levers: Limits that may be tried, ascending: from the lowest that all GPUs accept to the
            lowest original one, which somebody has set on purpose; none if refused.
        unrestored: What could not be restored on leaving the block; its record stays.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        directory: Path,
        start_guard: Callable[[Sequence[str], Sequence[int]], Guard],
    ) -> None:
        """Prepare; nothing is locked, read or written yet.

        ``start_guard`` gets UUIDs and file descriptors to inherit, and returns once the guard is
        ready, or raises a ``DeviceError``.
        """
        self.refused: str | None = None
        self.taken: str | None = None
        self.levers: tuple[Lever, ...] = ()
        self.unrestored: str | None = None
        self._devices = [device for device in devices if isinstance(device, LimitableDevice)]
        self._directory = directory
        self._start_guard = start_guard
        self._locks: list[LimitLock] = []
        self._guard: Guard | None = None
        self._original_w: dict[str, float] = {}
        # The limits that zeusrun has set, by UUID, of GPUs that may not have their original one.
        self._set_w: dict[str, tuple[float, ...]] = {}
        self._trial = ""

    def __enter__(self) -> Self:
        """Take the locks, or raise a ``BusyError``; check whether limits may be set."""
        try:
            self._lock_all()
            self.refused = self._prepare()
        except BaseException:
            self._release()
            raise
        if self.refused is not None:
            self._release()
        return self

    def __exit__(self, *_error: object) -> None:
        taken_before = self.taken
        try:
            self.restore()
        except DeviceError as failure:
            self.unrestored = str(failure)
        finally:
            self._release()
        with contextlib.suppress(OSError):  # then it is unknown whether there are records
            if not any(record_path(self._directory, uuid).exists() for uuid in self._original_w):
                self.unrestored = None  # the guard has restored it
        if self.taken != taken_before:
            self.unrestored = self.unrestored or self.taken

    def hold(self, lever: Lever, trial: str) -> None:
        """Let a trial set a limit on every GPU, until the next call or the end of the block.

        If that fails, the original limits are restored as far as possible. It raises
        ``LimitRefusedError`` if somebody else has set a limit since, or permission is missing, and
        ``DeviceError`` if a GPU cannot be held to it.
        """
        self._trial, watts = trial, lever.value
        try:
            self.check(lever)
            left_w = {u: self._set_w.get(u, (w,)) for u, w in self._original_w.items()}
            for device in self._devices:
                self._check_own(device, left_w[device.uuid])
            if not self._set_w and set(self._original_w.values()) == {watts}:
                return
            for uuid in self._original_w:
                self._set_w[uuid] = (*self._set_w.get(uuid, ())[-1:], watts)
                # Write it before the change, so that a restore recognises the limit as zeusrun's.
                write_record(self._directory, self._record(uuid))
            self._ensure_guard()
            for device in self._devices:
                # Somebody else may have set a limit since the check above.
                self._check_own(device, left_w[device.uuid])
                self._set(device, watts)
        except DeviceError:
            self.restore()
            raise

    def keep_guarded(self) -> None:
        """Ensure that a guard runs while limits are changed; call it regularly.

        If none can be started, it restores the original limits and raises a ``DeviceError``.
        """
        if self._set_w:
            try:
                self._ensure_guard()
            except DeviceError:
                self.restore()
                raise

    def check(self, lever: Lever) -> None:
        """Raise a ``DeviceError`` for a limit that cannot be set; change nothing."""
        watts = lever.value
        if self.refused is not None:
            raise LimitRefusedError(
                f"a power limit of {watts:g} W cannot be held: {self.refused}. "
                "power_limit: {mode: observe} trains without one"
            )
        for device in self._devices:
            check_power_limit(name_of(device), watts, device.power_limit_range_w())

    def restore(self) -> None:
        """Restore the original limits, if they were changed, and remove the records.

        A limit that somebody else has set stays, and ``taken`` names it. One that cannot be
        restored keeps its record, and a ``DeviceError`` follows after the others are restored.
        """
        problems = []
        for device in self._devices:
            if device.uuid not in self._set_w:
                continue
            try:
                stays = put_back(self._directory, device, self._record(device.uuid))
                del self._set_w[device.uuid]
                if stays is not None:
                    self._take_over(stays)
            except DeviceError as error:
                problems.append(str(error))
        if problems:
            raise DeviceError("; ".join(problems))

    def _check_own(self, device: LimitableDevice, left_w: Sequence[float]) -> None:
        """Refuse to continue if a limit is none of those that zeusrun may have left, in watts."""
        now_w = device.power_limit_w()
        if now_w is not None and not any(is_same_limit(now_w, watts) for watts in left_w):
            self._take_over(
                f"the power limit of {name_of(device)} stays at {now_w:g} W: it is not the "
                f"{left_w[-1]:g} W that it was left at, so somebody else has set it"
            )
            raise LimitRefusedError(self.taken)

    def _take_over(self, why: str) -> None:
        """Change nothing any more, because somebody else sets limits. Keep the first reason."""
        self.taken = self.refused = self.taken or why
        self.levers = ()

    def _set(self, device: LimitableDevice, watts: float) -> None:
        uuid = device.uuid
        try:
            set_limit(device, watts)
        except DeviceError:
            # What a GPU reports right after a change counts as set by zeusrun, to be restored.
            with contextlib.suppress(DeviceError):
                now_w = device.power_limit_w()
                if now_w is not None:
                    self._set_w[uuid] = (*self._set_w[uuid], now_w)
                    write_record(self._directory, self._record(uuid))
            raise
        self._set_w[uuid] = (watts,)

    def _record(self, uuid: str) -> LimitRecord:
        return LimitRecord(uuid, self._original_w[uuid], self._trial, self._set_w[uuid])

    def _ensure_guard(self) -> None:
        if self._guard is not None and not self._guard.is_alive():
            self._guard.dismiss()
            self._guard = None
        if self._guard is None:
            held = [number for lock in self._locks for number in lock.descriptors]
            self._guard = self._start_guard(list(self._original_w), held)

    def _lock_all(self) -> None:
        # Lock in the same order everywhere, so that no two launchers wait for each other.
        for device in sorted(self._devices, key=lambda device: device.uuid):
            lock = LimitLock(device.uuid, self._directory)
            give_up_t = time.monotonic() + _LOCK_TIMEOUT_S
            while not lock.acquire():
                if time.monotonic() > give_up_t:
                    raise _busy(self._directory, device)
                time.sleep(_RETRY_AFTER_S)
            self._locks.append(lock)

    def _prepare(self) -> str | None:
        """Read the original limits and the range; return why no limit may be changed."""
        limited = []
        lowest_w = 0.0
        for device in self._devices:
            try:
                record = read_record(self._directory, device.uuid)
                if record is not None:  # left by a dead launcher and guard
                    put_back(self._directory, device, record)
            except DeviceError as error:
                return str(error)
            range_w, limit_w = device.power_limit_range_w(), device.power_limit_w()
            if range_w is None:
                continue
            if limit_w is None:
                return f"{name_of(device)} does not report its power limit"
            limited.append(device)
            lowest_w = max(lowest_w, range_w[0])
            self._original_w[device.uuid] = limit_w
        self._devices = limited
        if not limited:
            return "no GPU of the job has a power limit that can be set"
        try:
            for device in limited:
                # Setting the limit in force changes nothing, but needs the same permission.
                device.set_power_limit_w(self._original_w[device.uuid])
        except DeviceError as error:  # it is reported but cannot be set, as on some laptops
            return str(error)
        grid_w = limit_grid_w(lowest_w, min(self._original_w.values()))
        self.levers = tuple(Lever(POWER, watts) for watts in grid_w)
        return None

    def _release(self) -> None:
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None
        for lock in self._locks:
            lock.release()
        self._locks.clear()


def limit_grid_w(lowest_w: float, highest_w: float) -> tuple[float, ...]:
    """Return the limits to try from the lowest to the highest, ascending."""
    if highest_w <= lowest_w:
        return (highest_w,)
    fitting = (step for step in _STEPS_W if (highest_w - lowest_w) / step <= _MOST_STEPS)
    step_w = next(fitting, _STEPS_W[-1])
    # Leave out multiples less than half a step from an end: their results would be the same.
    first, last = math.ceil(lowest_w / step_w + 0.5), math.floor(highest_w / step_w - 0.5)
    return (lowest_w, *(step_w * number for number in range(first, last + 1)), highest_w)


def _busy(directory: Path, device: Device) -> BusyError:
    try:
        record = read_record(directory, device.uuid)
        who = "another zeusrun" if record is None else f"trial {record.trial}"
    except DeviceError:
        who = "another zeusrun"
    return BusyError(
        f"{name_of(device)}: {who} holds its power limit. Wait for it to end, give this job other "
        "GPUs by CUDA_VISIBLE_DEVICES, or set power_limit.mode to 'observe'"
    )
