"""Restores a GPU's original power limit, unless somebody else has set another one since."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.energy.device import is_same_limit
from zeusrun.errors import DeviceError, LimitRefusedError
from zeusrun.gpu.power_limits.lock import LimitLock
from zeusrun.gpu.power_limits.original_limits import (
    read_record,
    record_path,
    recorded_gpus,
    remove_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zeusrun.energy.device import Device, LimitableDevice
    from zeusrun.gpu.power_limits.original_limits import LimitRecord


class Restored(NamedTuple):
    """The result for a limit on record, or the expected result.

    Attributes:
        uuid: UUID of the GPU.
        text: A sentence for the user.
    """

    uuid: str
    text: str


def set_limit(device: LimitableDevice, watts: float) -> None:
    """Set a limit, and check by reading it back.

    Raises:
        LimitRefusedError: If permission is missing.
        DeviceError: If the device refuses it, or reports another limit afterwards.
    """
    device.set_power_limit_w(watts)
    now_w = device.power_limit_w()
    if now_w is not None and not is_same_limit(now_w, watts):
        raise DeviceError(
            f"{name_of(device)} accepted a power limit of {watts:g} W and reports {now_w:g} W: its "
            "driver ignores the limit, or somebody else sets limits, too"
        )


def put_back(directory: Path, device: LimitableDevice, record: LimitRecord) -> str | None:
    """Set the original limit again, and remove its record.

    It is set even if it is in force: a zeusd that did not answer in time may be about to set an
    earlier limit, and it processes limits in order.

    A limit that zeusrun has not set stays: an administrator may have set it on purpose.

    Args:
        directory: Directory of the record.
        device: The GPU.
        record: The original limit, and those that zeusrun has set since.

    Returns:
        A sentence on a limit that stays; ``None`` if the original limit is restored.

    Raises:
        DeviceError: If the GPU refuses the limit or does not answer, or the record cannot be
            removed; the record stays.
    """
    original_w = record.original_w
    try:
        stays = _why_it_stays(device, record)
        if stays is None:
            _set_again(device, original_w)
    except DeviceError as error:
        raise DeviceError(
            f"the power limit of {name_of(device)} is not restored (to {original_w:g} W): "
            f"{error}. `zeusrun repair` tries again; `nvidia-smi -i {device.uuid} -pl "
            f"{original_w:g}` sets it by hand"
        ) from error
    remove_record(directory, device.uuid)
    return stays


def restore_limit(directory: Path, device: LimitableDevice) -> None:
    """Restore the limit on record for a GPU, if there is one, and remove the record.

    The caller holds the GPU's lock.

    Raises:
        DeviceError: If the record is unreadable, or the GPU refuses its limit; the record stays.
    """
    record = read_record(directory, device.uuid)
    if record is not None:
        put_back(directory, device, record)


def repair_limits(
    directory: Path,
    open_gpu: Callable[[LimitRecord], LimitableDevice],
    *,
    dry_run: bool = False,
) -> tuple[list[Restored], list[str], list[str]]:
    """Restore every limit on record that no running zeusrun holds.

    Args:
        directory: Directory of the records.
        open_gpu: Opens the GPU of a record; raises a ``DeviceError`` if it is absent.
        dry_run: Set and remove nothing; only return what would happen.

    Returns:
        The results for restored limits, a sentence for each limit that could not be restored, and
        the GPUs that a process holds. Records of other machines that share the directory are left.
    """
    restored, problems, held = [], [], []
    for uuid in recorded_gpus(directory):
        lock = LimitLock(uuid, directory)
        try:
            if not lock.acquire():
                held.append(uuid)  # by its launcher, or by a guard that is about to restore it
                continue
            record = read_record(directory, uuid)
            if record is None or record.is_elsewhere:
                continue
            with contextlib.closing(_opened(directory, open_gpu, record)) as device:
                if dry_run:
                    stays = _why_it_stays(device, record)
                else:
                    stays = put_back(directory, device, record)
            verb = "is to be restored to" if dry_run else "is restored to"
            text = f"the power limit of {uuid} {verb} {record.original_w:g} W, the value before "
            restored.append(Restored(uuid, stays or text + record.trial))
        except DeviceError as error:
            problems.append(str(error))
        finally:
            lock.release()
    return restored, problems, held


def name_of(device: Device) -> str:
    """Return the name of a device for messages."""
    return f"{device.model} ({device.uuid})"


def _set_again(device: LimitableDevice, original_w: float) -> None:
    try:
        set_limit(device, original_w)
    except LimitRefusedError:
        # Nothing was set. If the limit is in force, no permission is needed.
        now_w = device.power_limit_w()
        if now_w is None or not is_same_limit(now_w, original_w):
            raise


def _opened(
    directory: Path, open_gpu: Callable[[LimitRecord], LimitableDevice], record: LimitRecord
) -> LimitableDevice:
    try:
        return open_gpu(record)
    except DeviceError as error:
        before = f"{record.original_w:g} W, the value before {record.trial}"
        raise DeviceError(
            f"a power limit is not restored ({before}): {error}. If this GPU was removed for good, "
            f"delete its record: {record_path(directory, record.uuid)}"
        ) from error


def _why_it_stays(device: LimitableDevice, record: LimitRecord) -> str | None:
    """Return why the limit in force must stay; ``None`` if it is to be restored."""
    now_w = device.power_limit_w()
    if now_w is None or is_same_limit(now_w, record.original_w):
        return None
    # Recognise zeusrun's limits by their watts: a container may have its own boot id.
    if any(is_same_limit(now_w, watts) for watts in record.set_w):
        return None
    if record.is_of_earlier_boot:
        why = f"the machine was booted after {record.trial} had changed it"
    elif record.set_w:
        why = f"it is not the {record.set_w[-1]:g} W of {record.trial}, so somebody else has set it"
    else:
        return None
    return f"the power limit of {name_of(device)} stays at {now_w:g} W: {why}"
