"""Puts a GPU's power limit back as it was found, unless somebody else has set another one since."""

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
    """What became of a limit on record, or would become of it.

    Attributes:
        uuid: Of the GPU.
        text: A sentence for people.
    """

    uuid: str
    text: str


def set_limit(device: LimitableDevice, watts: float) -> None:
    """Set a limit, and read back whether it is in force.

    Raises:
        LimitRefusedError: If permission is missing.
        DeviceError: If the device refuses it, or reports another one afterwards.
    """
    device.set_power_limit_w(watts)
    now_w = device.power_limit_w()
    if now_w is not None and not is_same_limit(now_w, watts):
        raise DeviceError(
            f"{name_of(device)} took a power limit of {watts:g} W and reports {now_w:g} W: its "
            "driver ignores the limit, or somebody else sets limits, too"
        )


def put_back(directory: Path, device: LimitableDevice, record: LimitRecord) -> str | None:
    """Set the limit found again, and remove the record of it.

    It is set even where it is in force: a zeusd that did not answer in time may be about to carry
    out an earlier limit, and carries them out in order.

    A limit that zeusrun has not set stays: an administrator who caps a GPU has a reason.

    Args:
        directory: Of the record.
        device: The GPU.
        record: What was found, and what zeusrun has set since.

    Returns:
        A sentence on a limit that stays; ``None`` if the limit is as it was found.

    Raises:
        DeviceError: If the GPU does not take the limit or does not answer, or the record cannot be
            removed; it stays.
    """
    original_w = record.original_w
    try:
        stays = _why_it_stays(device, record)
        if stays is None:
            _set_again(device, original_w)
    except DeviceError as error:
        raise DeviceError(
            f"the power limit of {name_of(device)} is not as it was found ({original_w:g} W): "
            f"{error}. `zeusrun repair` tries again; `nvidia-smi -i {device.uuid} -pl "
            f"{original_w:g}` sets it by hand"
        ) from error
    remove_record(directory, device.uuid)
    return stays


def restore_limit(directory: Path, device: LimitableDevice) -> None:
    """Restore the limit that is on record for a GPU, if one is, and remove the record.

    The caller has the GPU's lock.

    Raises:
        DeviceError: If the record is unreadable, or the GPU does not take its limit; it stays.
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
        directory: Where the records are kept.
        open_gpu: Opens the GPU of a record; raises a ``DeviceError`` if it is absent.
        dry_run: Set and remove nothing; only look what would become of them.

    Returns:
        What became of the records that are dealt with, a sentence for each that could not be, and
        the GPUs that somebody holds. Records of other machines that share the directory are theirs.
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
            with contextlib.closing(_opened(directory, open_gpu, record)) as device:
                if dry_run:
                    stays = _why_it_stays(device, record)
                else:
                    stays = put_back(directory, device, record)
            limit = f"{record.original_w:g} W" if dry_run else f"{record.original_w:g} W again"
            then = f"{'is to be' if dry_run else 'is'} {limit}, as {record.trial} had found it"
            restored.append(Restored(uuid, stays or f"the power limit of {uuid} {then}"))
        except DeviceError as error:
            problems.append(str(error))
        finally:
            lock.release()
    return restored, problems, held


def name_of(device: Device) -> str:
    """Return what to call a device in a message."""
    return f"{device.model} ({device.uuid})"


def _set_again(device: LimitableDevice, original_w: float) -> None:
    try:
        set_limit(device, original_w)
    except LimitRefusedError:
        # Nobody has taken it. Where it is in force, nothing needs to be permitted.
        now_w = device.power_limit_w()
        if now_w is None or not is_same_limit(now_w, original_w):
            raise


def _opened(
    directory: Path, open_gpu: Callable[[LimitRecord], LimitableDevice], record: LimitRecord
) -> LimitableDevice:
    try:
        return open_gpu(record)
    except DeviceError as error:
        found = f"{record.original_w:g} W, as {record.trial} had found it"
        raise DeviceError(
            f"a power limit is not restored ({found}): {error}. If this GPU was removed for good, "
            f"delete its record: {record_path(directory, record.uuid)}"
        ) from error


def _why_it_stays(device: LimitableDevice, record: LimitRecord) -> str | None:
    """Say why the limit in force is not zeusrun's to change; ``None`` if it is."""
    now_w = device.power_limit_w()
    if now_w is None or is_same_limit(now_w, record.original_w):
        return None
    # A limit that zeusrun has set is known by its watts; a container may have a boot id of its own.
    if any(is_same_limit(now_w, watts) for watts in record.set_w):
        return None
    if record.is_of_earlier_boot:
        why = f"the machine was booted after {record.trial} had changed it"
    elif record.set_w:
        why = f"it is not the {record.set_w[-1]:g} W of {record.trial}, so somebody else has set it"
    else:
        return None
    return f"the power limit of {name_of(device)} stays at {now_w:g} W: {why}"
