"""The GPUs' original power limits: one record (a file) and one lock for each GPU.

A record is on disk before the limit is changed, and is removed after the limit is restored. While
it exists, the GPU may not have its original limit.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import platform
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.energy.device import is_same_limit, name_of
from zeusrun.errors import DeviceError, LimitRefusedError
from zeusrun.files.lock import FileLock, is_locked
from zeusrun.files.private import build_known, check_version, make_folder, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.energy.device import LimitableDevice

_VERSION = 1
_SUFFIX = ".limit.json"
_TOO_LARGE = (OverflowError, RecursionError)  # a number for a float, a depth for the parser
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _read_boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class LimitRecord:
    """The original limit of a GPU, to be restored.

    Attributes:
        uuid: UUID of the GPU.
        original_w: Its limit before zeusrun changed it.
        trial: The trial that changed it.
        set_w: The limit that zeusrun set last and the one it was about to set; empty at first.
        host: The machine of the GPU: several machines may share the directory.
        boot_id: See random(4); ``None`` if unknown.
    """

    uuid: str
    original_w: float
    trial: str
    set_w: tuple[float, ...] = ()
    host: str = field(default_factory=platform.node)
    boot_id: str | None = field(default_factory=_read_boot_id)

    @property
    def is_elsewhere(self) -> bool:
        """Whether the GPU is in another machine; a container may have its own host name."""
        same_boot = self.boot_id is not None and self.boot_id == _read_boot_id()
        return self.host != platform.node() and not same_boot


def record_path(directory: Path, uuid: str) -> Path:
    """Return the file of a GPU's record, which may not exist."""
    return directory / (uuid + _SUFFIX)


def write_record(directory: Path, record: LimitRecord) -> None:
    """Write a record to disk durably, or raise a ``DeviceError``; then change no limit."""
    path = record_path(directory, record.uuid)
    content = {"version": _VERSION, **vars(record)}
    try:
        make_folder(directory)
        replace_file(path, json.dumps(content).encode())
    except OSError as error:
        raise DeviceError(
            f"{path} cannot be written, so no power limit is changed: {error.strerror or error}"
        ) from error


def read_record(directory: Path, uuid: str) -> LimitRecord | None:
    """Return the record of a GPU, ``None`` for none; ``DeviceError`` if it is unreadable."""
    path = record_path(directory, uuid)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        check_version(content, _VERSION, path, DeviceError)
        original_w, set_w = _watts(content["original_w"]), tuple(map(_watts, content["set_w"]))
        checked = {"uuid": uuid, "original_w": original_w, "set_w": set_w}
        return build_known(LimitRecord, content, **checked)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, *_TOO_LARGE) as error:
        raise DeviceError(
            f"{path} is not a record of a power limit ({error}); see `nvidia-smi -q -d POWER`, and "
            "remove the file"
        ) from error


def _watts(value: float) -> float:
    if not 0 < float(value) < math.inf:
        raise ValueError(f"{value} W")
    return float(value)


def abandoned_gpus(directory: Path) -> list[str]:
    """Return the UUIDs of the GPUs of this machine that a dead launcher has left changed.

    ``DeviceError`` if that is unknown.
    """
    found = []
    for uuid in recorded_gpus(directory):
        with contextlib.suppress(DeviceError):  # unreadable: it may be of this machine
            record = read_record(directory, uuid)
            if record is None or record.is_elsewhere:
                continue
        if not is_held(uuid, directory):
            found.append(uuid)
    return found


def recorded_gpus(directory: Path) -> list[str]:
    """Return the UUIDs of the GPUs that have a record; ``DeviceError`` if that is unknown."""
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DeviceError(
            f"cannot check whether power limits are left changed: {directory}: {error.strerror}; "
            "give yourself access, or set ZEUSRUN_HOME to another folder"
        ) from error
    return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))


def set_limit(device: LimitableDevice, watts: float) -> None:
    """Set a limit; ``DeviceError`` if the device refuses it, or reports another one afterwards."""
    device.set_power_limit_w(watts)
    now_w = device.power_limit_w()
    if now_w is not None and not is_same_limit(now_w, watts):
        raise DeviceError(
            f"{name_of(device)} accepted a power limit of {watts:g} W and reports {now_w:g} W: its "
            "driver ignores the limit, or somebody else sets limits, too"
        )


def put_back(directory: Path, device: LimitableDevice, record: LimitRecord) -> str | None:
    """Set the original limit of a GPU again, and remove its record. The caller holds the lock.

    It is set even if it is in force: a zeusd that did not answer in time may be about to set an
    earlier limit, and it processes limits in order. A limit that zeusrun has not set stays: an
    administrator may have set it on purpose.

    It returns a sentence on a limit that stays. It raises a ``DeviceError`` if the GPU refuses the
    limit or does not answer; the record then stays.
    """
    original_w = record.original_w
    try:
        stays = _why_it_stays(device, record)
        if stays is None:
            _set_again(device, original_w)
    except DeviceError as error:
        by_hand = ""
        if device.uuid.startswith("GPU-"):  # NVIDIA's
            by_hand = f"; `nvidia-smi -i {device.uuid} -pl {original_w:g}` sets it by hand"
        raise DeviceError(
            f"the power limit of {name_of(device)} is not restored (to {original_w:g} W): "
            f"{error}. `zeusrun repair` tries again{by_hand}"
        ) from error
    path = record_path(directory, device.uuid)
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
    except OSError as error:
        raise DeviceError(f"{path} cannot be removed: {error.strerror or error}") from error
    return stays


_LOCK_NAME = "zeusrun/power-limit/"


class LimitLock:
    """The lock of one GPU, by its UUID and the directory of its record.

    It is a name in Linux' abstract socket namespace (unix(7)): all users of a network namespace
    share it without files and permissions, and the kernel frees it with the last process that holds
    it. Containers with a common directory of records also see a locked file there.
    """

    def __init__(self, uuid: str, directory: Path) -> None:
        self._uuid, self._directory = uuid, directory
        self._held = contextlib.ExitStack()
        self.descriptors: list[int] = []  # a guard inherits them, and so the lock

    def acquire(self) -> bool:
        """Take the lock; return whether it was free. ``DeviceError`` if there are no such locks."""
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            name.bind(f"\0{_LOCK_NAME}{self._uuid}")
        except OSError as error:
            name.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise DeviceError(f"{self._uuid}: its limit cannot be locked: {error}") from error
        self._held.callback(name.close)
        self.descriptors.append(name.fileno())
        lock = FileLock(self._directory / f"{self._uuid}.lock")
        # If the file cannot exist, there is no record either, and no need for its lock.
        with contextlib.suppress(OSError):
            make_folder(self._directory)
            if not lock.acquire():
                self.release()
                return False
            self._held.callback(lock.release)
            self.descriptors.append(lock.fileno())
        return True

    def release(self) -> None:
        """Release the lock. More than once is fine."""
        self._held.close()
        self.descriptors.clear()


def is_held(uuid: str, directory: Path) -> bool:
    """Whether a process holds the lock of a GPU now, in any network namespace; takes no lock."""
    try:
        lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return True  # if unknown, assume that the holder is alive
    bound = any(line.endswith(f" @{_LOCK_NAME}{uuid}") for line in lines)
    return bound or is_locked(directory / f"{uuid}.lock") is True


class Restored(NamedTuple):
    """A GPU whose record was processed, and a sentence for the user."""

    uuid: str
    text: str


def repair_limits(
    directory: Path, open_gpu: Callable[[str], LimitableDevice]
) -> tuple[list[Restored], list[str], list[str]]:
    """Restore every limit on record that no running zeusrun holds.

    ``open_gpu`` opens a GPU by its UUID, or raises a ``DeviceError``. Records of other machines
    that share the directory stay. It returns the restored limits, a sentence for each limit that
    could not be restored, and the GPUs that a process holds.
    """
    restored, problems, held = [], [], []
    try:
        recorded = recorded_gpus(directory)
    except DeviceError as error:
        return [], [str(error)], []
    for uuid in recorded:
        lock = LimitLock(uuid, directory)
        try:
            if not lock.acquire():
                held.append(uuid)  # by its launcher, or by a guard that is about to restore it
                continue
            record = read_record(directory, uuid)
            if record is None or record.is_elsewhere:
                continue
            before = f"{record.original_w:g} W, the value before {record.trial}"
            try:
                opened = open_gpu(uuid)
            except DeviceError as error:
                problems.append(
                    f"a power limit is not restored ({before}): {error}. If this GPU was removed "
                    f"for good, delete its record: {record_path(directory, uuid)}"
                )
                continue
            with contextlib.closing(opened) as device:
                stays = put_back(directory, device, record)
            text = stays or f"the power limit of {uuid} is restored to {before}"
            restored.append(Restored(uuid, text))
        except DeviceError as error:
            problems.append(str(error))
        finally:
            lock.release()
    return restored, problems, held


def _set_again(device: LimitableDevice, original_w: float) -> None:
    try:
        set_limit(device, original_w)
    except LimitRefusedError:
        # Nothing was set. If the limit is in force, no permission is needed.
        now_w = device.power_limit_w()
        if now_w is None or not is_same_limit(now_w, original_w):
            raise


def _why_it_stays(device: LimitableDevice, record: LimitRecord) -> str | None:
    """Return why the limit in force must stay; ``None`` if it is to be restored."""
    now_w = device.power_limit_w()
    # Recognise zeusrun's limits by their watts: a container may have its own boot id.
    if now_w is None or any(is_same_limit(now_w, w) for w in (record.original_w, *record.set_w)):
        return None
    if not record.set_w:
        return None
    return (
        f"the power limit of {name_of(device)} stays at {now_w:g} W: it is not the "
        f"{record.set_w[-1]:g} W of {record.trial}, so somebody else or a reboot has set it"
    )
