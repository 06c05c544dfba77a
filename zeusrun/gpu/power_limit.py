"""Hold GPUs to power limits, and leave them as they were found."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Protocol

from zeusrun.errors import BusyError, DeviceError, LimitRefusedError
from zeusrun.gpu.device import LimitableDevice, check_power_limit
from zeusrun.gpu.limit_lock import LimitLock
from zeusrun.gpu.limit_record import (
    LimitRecord,
    has_record,
    read_record,
    recorded_gpus,
    remove_record,
    write_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from zeusrun.gpu.device import Device

# The steps between limits that are tried, and how many of them the range may have at most: with
# fewer the best lies between two, with more the neighbours differ by less than a probe can tell.
_STEPS_W = (5.0, 10.0, 25.0, 50.0, 100.0, 250.0)
_MOST_STEPS = 10
_PATIENCE_S = 3.0
_AGAIN_S = 0.1


class Guard(Protocol):
    """A process that restores the limits on record when the launcher dies."""

    def is_alive(self) -> bool:
        """Whether it watches still."""

    def dismiss(self) -> None:
        """Tell it that the launcher has no more need of it, and wait for it to go."""


class LimitHolder:
    """The power limits of a job's GPUs: found, held, put back. A context manager.

    While the block runs, no other zeusrun of this machine changes a limit of these GPUs. The
    limits found are on disk, and a guard runs that outlives the launcher, before the first limit
    is changed. On leaving the block they are restored exactly.

    Attributes:
        refused: Why the limits are left alone, in a sentence; ``None`` if they may be changed.
        limits_w: Limits per GPU that may be tried, ascending: from the lowest that all GPUs take
            up to the lowest that was found, which somebody has set on purpose; none if refused.
        unrestored: What could not be put back on leaving the block, in a sentence; its record
            stays. ``None`` if all is as it was found.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        directory: Path,
        start_guard: Callable[[Mapping[str, float], Sequence[int]], Guard],
        zeusd: str | None = None,
    ) -> None:
        """Prepare; nothing is locked, read or written yet.

        Args:
            devices: Those of the job. One that cannot be limited is left alone.
            directory: Where the records are kept.
            start_guard: Starts a guard that knows the watts to go back to, by UUID, and inherits
                file descriptors, and returns once it watches; raises a ``DeviceError`` if it
                cannot.
            zeusd: Socket of the daemon that the job names, for whoever has to restore its limits;
                ``None`` if it names none.
        """
        self.refused: str | None = None
        self.limits_w: tuple[float, ...] = ()
        self.unrestored: str | None = None
        self._devices = [device for device in devices if isinstance(device, LimitableDevice)]
        self._directory = directory
        self._start_guard = start_guard
        self._zeusd = zeusd
        self._locks: list[LimitLock] = []
        self._guard: Guard | None = None
        self._found_w: dict[str, float] = {}
        self._changed: set[str] = set()  # the GPUs that may not be as they were found

    def __enter__(self) -> Self:
        """Take the locks, and see whether limits may be set.

        Raises:
            BusyError: If another zeusrun holds the limit of one of the GPUs.
            DeviceError: If a GPU does not answer, or an earlier limit cannot be restored.
        """
        try:
            self._open()
        except BaseException:
            self._let_go()
            raise
        if self.refused is not None:
            self._let_go()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.restore()
        except DeviceError as failure:
            self.unrestored = str(failure)
        finally:
            self._let_go()
        if not any(has_record(self._directory, uuid) for uuid in self._found_w):
            self.unrestored = None  # the guard has done it

    @property
    def found_w(self) -> float | None:
        """The lowest limit found, in watts per GPU; ``None`` if refused."""
        return min(self._found_w.values(), default=None)

    def hold(self, watts: float, trial: str) -> None:
        """Hold every GPU to a limit, until it is told another one or the block is left.

        Args:
            watts: For each GPU.
            trial: The one that wants it.

        Raises:
            LimitRefusedError: If permission is missing; the limits are as they were found then.
            DeviceError: If a GPU cannot be held to it. The limits are as they were found then, as
                far as they can be restored.
        """
        try:
            self.check(watts)
            if not self._changed and set(self._found_w.values()) == {watts}:
                return
            recorded = frozenset(self._changed)
            self._changed.update(self._found_w)
            for uuid, found_w in self._found_w.items():
                # Somebody may have removed one since.
                if uuid not in recorded or not has_record(self._directory, uuid):
                    record = LimitRecord(uuid, found_w, trial, self._zeusd)
                    write_record(self._directory, record)
            self._ensure_guard()
            for device in self._devices:
                device.set_power_limit_w(watts)
        except DeviceError:
            self.restore()
            raise

    def keep_guarded(self) -> None:
        """See to it that a guard watches while limits are changed; to be called now and then.

        Raises:
            DeviceError: If the guard has died and another one cannot be started. The limits are as
                they were found then, as far as they can be restored.
        """
        if not self._changed:
            return
        try:
            self._ensure_guard()
        except DeviceError:
            self.restore()
            raise

    def check(self, watts: float) -> None:
        """Refuse a limit that cannot be held; change nothing.

        Raises:
            LimitRefusedError: If permission is missing.
            DeviceError: If it is out of the range of a GPU.
        """
        if self.refused is not None:
            raise LimitRefusedError(self.refused)
        for device in self._devices:
            check_power_limit(_name(device), watts, device.power_limit_range_w())

    def restore(self) -> None:
        """Put back the limits found, if they were changed, and remove the records.

        Raises:
            DeviceError: If one cannot be restored. The others are all the same; its record stays.
        """
        if not self._changed:
            return
        problems = []
        for device in self._devices:
            if device.uuid not in self._changed:
                continue
            try:
                put_back(self._directory, device, self._found_w[device.uuid])
                self._changed.discard(device.uuid)
            except DeviceError as error:
                problems.append(str(error))
        if problems:
            raise DeviceError("; ".join(problems))

    def _ensure_guard(self) -> None:
        if self._guard is not None and not self._guard.is_alive():
            self._guard.dismiss()
            self._guard = None
        if self._guard is None:
            held = [number for lock in self._locks for number in lock.filenos()]
            self._guard = self._start_guard(self._found_w, held)

    def _open(self) -> None:
        # In the same order everywhere, so that no two launchers wait for each other.
        for device in sorted(self._devices, key=lambda device: device.uuid):
            lock = LimitLock(device.uuid, self._directory)
            if not _acquire(lock):
                raise _busy(self._directory, device)
            self._locks.append(lock)
        limited = []
        for device in self._devices:
            try:
                restore_limit(self._directory, device)  # what a dead launcher and guard have left
            except DeviceError as error:
                self.refused = str(error)
                return
            range_w, limit_w = device.power_limit_range_w(), device.read().power_limit_w
            if range_w is None:
                continue
            if limit_w is None:
                self.refused = f"{_name(device)} does not tell its power limit"
                return
            limited.append(device)
            self._found_w[device.uuid] = limit_w
        self._devices = limited
        if not limited:
            self.refused = "no GPU of the job has a power limit that can be set"
            return
        try:
            for device in limited:
                # A limit that is set to what it is changes nothing, but permission is asked for.
                device.set_power_limit_w(self._found_w[device.uuid])
        except DeviceError as error:  # a limit that is told and cannot be set: a laptop's, say
            self.refused = str(error)
            return
        ranges_w = [range_w for d in limited if (range_w := d.power_limit_range_w()) is not None]
        lowest_w = max(low_w for low_w, _ in ranges_w)
        self.limits_w = limit_grid_w(lowest_w, min(self._found_w.values()))

    def _let_go(self) -> None:
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None
        for lock in self._locks:
            lock.release()
        self._locks.clear()


def limit_grid_w(lowest_w: float, highest_w: float) -> tuple[float, ...]:
    """Return the limits to try between two, which are among them, ascending."""
    if highest_w <= lowest_w:
        return (highest_w,)
    fitting = (step for step in _STEPS_W if (highest_w - lowest_w) / step <= _MOST_STEPS)
    step_w = next(fitting, _STEPS_W[-1])
    multiples = (
        step_w * number for number in range(int(lowest_w // step_w), int(highest_w // step_w) + 1)
    )
    # Ends less than half a step from a multiple stand for it: two limits too close say the same.
    inner = (
        watts for watts in multiples if lowest_w + step_w / 2 <= watts <= highest_w - step_w / 2
    )
    return (lowest_w, *inner, highest_w)


def restore_limit(directory: Path, device: LimitableDevice) -> None:
    """Restore the limit that is on record for a GPU, if one is, and remove the record.

    The caller has the GPU's lock.

    Raises:
        DeviceError: If the record is unreadable, or the GPU does not take its limit; it stays.
    """
    record = read_record(directory, device.uuid)
    if record is not None:
        put_back(directory, device, record.found_w)


def put_back(directory: Path, device: LimitableDevice, found_w: float) -> None:
    """Set a limit that was found again, and remove the record of it.

    Raises:
        DeviceError: If the GPU does not take it, or the record cannot be removed; it stays.
    """
    try:
        try:
            device.set_power_limit_w(found_w)
        except LimitRefusedError:
            if device.read().power_limit_w != found_w:  # else there is nothing to be permitted
                raise
    except DeviceError as error:
        raise DeviceError(
            f"the power limit of {_name(device)} is not as it was found ({found_w:g} W): {error}. "
            f"`zeusrun repair` tries again; `nvidia-smi -i {device.uuid} -pl {found_w:g}` sets it "
            "by hand"
        ) from error
    remove_record(directory, device.uuid)


def repair_limits(
    directory: Path,
    open_gpu: Callable[[LimitRecord], LimitableDevice],
    *,
    dry_run: bool = False,
) -> tuple[list[LimitRecord], list[str], list[str]]:
    """Restore every limit on record that no running zeusrun holds.

    Args:
        directory: Where the records are kept.
        open_gpu: Opens the GPU of a record; raises a ``DeviceError`` if it is absent.
        dry_run: Only look which these are.

    Returns:
        The records that were restored and removed, a sentence for each that could not be, and the
        GPUs that somebody holds. Records of other machines that share the directory are theirs.
    """
    restored, problems, held = [], [], []
    for uuid in recorded_gpus(directory):
        lock = LimitLock(uuid, directory)
        try:
            if not lock.acquire():
                held.append(uuid)  # by its launcher, or a guard that is about to restore it
                continue
            record = read_record(directory, uuid)
            if record is None or record.is_elsewhere:
                continue
            if not dry_run:
                with contextlib.closing(open_gpu(record)) as device:
                    restore_limit(directory, device)
            restored.append(record)
        except DeviceError as error:
            problems.append(str(error))
        finally:
            lock.release()
    return restored, problems, held


def _acquire(lock: LimitLock) -> bool:
    """Take a lock that a guard or a repair may hold for a moment yet."""
    give_up_t = time.monotonic() + _PATIENCE_S
    while not lock.acquire():
        if time.monotonic() > give_up_t:
            return False
        time.sleep(_AGAIN_S)
    return True


def _busy(directory: Path, device: Device) -> BusyError:
    try:
        record = read_record(directory, device.uuid)
    except DeviceError:
        record = None
    who = "another zeusrun" if record is None else f"trial {record.trial}"
    return BusyError(
        f"{_name(device)}: {who} holds its power limit. Wait for it to end, give this job other "
        "GPUs by CUDA_VISIBLE_DEVICES, or set power_limit.mode to 'observe'"
    )


def _name(device: Device) -> str:
    return f"{device.model} ({device.uuid})"
