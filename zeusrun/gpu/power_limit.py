"""Hold GPUs to a power limit, and leave them as they were found."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

import filelock

from zeusrun.errors import BusyError, DeviceError
from zeusrun.gpu.device import LimitableDevice, check_power_limit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from zeusrun.gpu.device import Device

_VERSION = 1


@contextlib.contextmanager
def hold_power_limit(
    devices: Sequence[Device], watts: float | None, *, record_path: Path, lock_directory: Path
) -> Iterator[None]:
    """Hold every device that has a power limit to ``watts`` while the ``with`` block runs.

    The limits found are on disk before the first one changes, so that a launcher that dies can be
    cleaned up after; on leaving the block they are restored exactly and the record is removed.

    Args:
        devices: Those of the job. One that cannot be limited is left alone.
        watts: For each device, or ``None`` to touch nothing, the disk included.
        record_path: Where the limits found are kept meanwhile.
        lock_directory: Where a lock for each GPU is held meanwhile: a second holder would take
            the first one's limit for the one to restore.

    Raises:
        BusyError: If somebody else holds a limit of one of the GPUs.
        DeviceError: If no device can be limited, ``watts`` is out of a device's range, permission
            is missing, an older record is in the way, or a limit cannot be restored (the record
            stays then).
    """
    if watts is None:
        yield
        return
    with contextlib.ExitStack() as locks:
        for device in _limitable(devices):
            locks.callback(_lock(device, lock_directory).release)
        found_w = _read_limits(devices, watts)
        _write_record(record_path, found_w)
        try:
            for device in _limitable(devices):
                if device.uuid in found_w:
                    _change(device, watts)
            yield
        finally:
            _restore(found_w, devices, record_path)


def _lock(device: LimitableDevice, directory: Path) -> filelock.BaseFileLock:
    """Take the lock of a GPU; the caller releases it."""
    lock = filelock.FileLock(directory / f"{device.uuid}.lock", timeout=0)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock.acquire()
    except filelock.Timeout:
        raise BusyError(
            f"{device.uuid}: another run holds this GPU's power limit; wait for it to end, or set "
            "power_limit.mode to 'observe'"
        ) from None
    except OSError as error:
        raise DeviceError(f"{directory}: {error.strerror}; its locks cannot be kept") from error
    return lock


def restore_power_limits(record_path: Path, devices: Sequence[Device]) -> None:
    """Restore the limits that a record holds, then remove it. Without a record, do nothing.

    Args:
        record_path: What a launcher left, perhaps by dying.
        devices: The devices it names; others are left alone.

    Raises:
        DeviceError: If the record is unreadable, or a device is absent or does not take its limit.
            The others are restored all the same, and the record stays.
    """
    try:
        found_w = _load_record(record_path)
    except FileNotFoundError:
        return
    _restore(found_w, devices, record_path)


def _restore(found_w: Mapping[str, float], devices: Sequence[Device], record_path: Path) -> None:
    present = {device.uuid: device for device in _limitable(devices)}
    problems = []
    for uuid, watts in found_w.items():
        if uuid not in present:
            problems.append(f"{uuid} is not here")
            continue
        try:
            _change(present[uuid], watts)
        except DeviceError as error:
            problems.append(str(error))
    if problems:
        raise DeviceError(
            f"power limits are not as they were found: {'; '.join(problems)}; "
            f"{record_path} holds what they were (nvidia-smi -i UUID -pl WATTS sets one by hand)"
        )
    record_path.unlink(missing_ok=True)


def _limitable(devices: Sequence[Device]) -> list[LimitableDevice]:
    return [device for device in devices if isinstance(device, LimitableDevice)]


def _read_limits(devices: Sequence[Device], watts: float) -> dict[str, float]:
    found_w = {}
    for device in _limitable(devices):
        range_w = device.power_limit_range_w()
        limit_w = device.read().power_limit_w
        if range_w is not None and limit_w is not None:
            check_power_limit(f"{device.model} ({device.uuid})", watts, range_w)
            found_w[device.uuid] = limit_w
    if not found_w:
        raise DeviceError(
            f"none of the job's {len(devices)} devices can be held to {watts:g} W; "
            "use power_limit: {mode: observe}"
        )
    return found_w


def _change(device: LimitableDevice, watts: float) -> None:
    # A limit that is right already needs no permission.
    if device.read().power_limit_w != watts:
        device.set_power_limit_w(watts)


def _write_record(path: Path, found_w: Mapping[str, float]) -> None:
    if path.exists():
        raise DeviceError(
            f"{path} holds power limits that an earlier run did not restore; restore them first"
        )
    temporary = path.with_name(path.name + ".new")
    record = {"version": _VERSION, "power_limit_w": dict(found_w)}
    try:
        with temporary.open("w", encoding="ascii") as file:
            json.dump(record, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)  # the name must survive a power cut as well
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise DeviceError(f"{path} cannot be written, so no power limit is set: {error}") from error


def _load_record(path: Path) -> dict[str, float]:
    try:
        record = json.loads(path.read_text(encoding="ascii"))
        if record["version"] != _VERSION:
            raise DeviceError(f"{path} is of version {record['version']}, not {_VERSION}")
        return {str(uuid): float(watts) for uuid, watts in record["power_limit_w"].items()}
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DeviceError(f"{path} is no record of power limits: {error!r}") from error
