"""Records of the GPUs' original power limits: one file for each GPU.

A record is on disk before the limit is changed, and is removed after the limit is restored. While
it exists, the GPU may not have its original limit.
"""

from __future__ import annotations

import json
import math
import platform
from dataclasses import dataclass, field
from pathlib import Path

from zeusrun.errors import DeviceError
from zeusrun.files.atomic import replace_file
from zeusrun.files.private import make_folder

_VERSION = 1
_SUFFIX = ".limit.json"
_TOO_LARGE = (OverflowError, RecursionError)  # a number for a float, a depth for the parser
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _read_boot_id() -> str | None:
    """Return the kernel's name for this boot (random(4)); ``None`` where there is none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class LimitRecord:
    """The original limit of a GPU, to be restored.

    Attributes:
        uuid: UUID of the GPU.
        original_w: Its limit in watts before zeusrun changed it.
        trial: The trial that changed it.
        zeusd: Socket or ``host:port`` of the job's daemon; ``None`` for none.
        set_w: The limit that zeusrun set last and the one it was about to set, in watts; empty if
            unknown, as in a record of an older zeusrun.
        host: The machine of the GPU: several machines may share the directory.
        boot_id: The kernel's boot id; ``None`` if unknown. A power limit does not outlive a boot.
    """

    uuid: str
    original_w: float
    trial: str
    zeusd: str | None = None
    set_w: tuple[float, ...] = ()
    host: str = field(default_factory=platform.node)
    boot_id: str | None = field(default_factory=_read_boot_id)

    @property
    def is_elsewhere(self) -> bool:
        """Whether the GPU is in another machine; a container may have its own host name."""
        same_boot = self.boot_id is not None and self.boot_id == _read_boot_id()
        return self.host != platform.node() and not same_boot

    @property
    def is_of_earlier_boot(self) -> bool:
        """Whether the machine was booted since, so that no limit of zeusrun is in force."""
        boot_id = _read_boot_id()
        return None not in (self.boot_id, boot_id) and self.boot_id != boot_id


def record_path(directory: Path, uuid: str) -> Path:
    """Return the file of a GPU's record, which may not exist."""
    return directory / (uuid + _SUFFIX)


def write_record(directory: Path, record: LimitRecord) -> None:
    """Write a record to disk durably.

    Raises:
        DeviceError: If it cannot be written; then no limit may be changed.
    """
    path = record_path(directory, record.uuid)
    content = {"version": _VERSION, **vars(record)}
    content["found_w"] = content.pop("original_w")  # its name in files
    try:
        make_folder(directory)
        replace_file(path, json.dumps(content).encode())
    except OSError as error:
        raise DeviceError(
            f"{path} cannot be written, so no power limit is changed: {error.strerror or error}"
        ) from error


def remove_record(directory: Path, uuid: str) -> None:
    """Remove a record, if it exists.

    Raises:
        DeviceError: If it exists and cannot be removed.
    """
    path = record_path(directory, uuid)
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise DeviceError(f"{path} cannot be removed: {error.strerror or error}") from error


def read_record(directory: Path, uuid: str) -> LimitRecord | None:
    """Return the record of a GPU; ``None`` if there is none.

    Raises:
        DeviceError: If it cannot be read.
    """
    path = record_path(directory, uuid)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != _VERSION:
            raise DeviceError(f"{path} is of version {content['version']}, not {_VERSION}")
        zeusd, boot_id = content.get("zeusd"), content.get("boot_id")
        return LimitRecord(
            uuid,
            _watts(content["found_w"]),
            str(content["trial"]),
            None if zeusd is None else str(zeusd),
            tuple(_watts(watts) for watts in content.get("set_w", ())),
            str(content["host"]),
            None if boot_id is None else str(boot_id),
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, *_TOO_LARGE) as error:
        raise DeviceError(
            f"{path} is no record of a power limit ({error}); see `nvidia-smi -q -d POWER`, and "
            "remove the file"
        ) from error


def is_elsewhere(directory: Path, uuid: str) -> bool:
    """Whether the record of a GPU belongs to another machine that shares the directory."""
    try:
        record = read_record(directory, uuid)
    except DeviceError:
        return False
    return record is not None and record.is_elsewhere


def has_record(directory: Path, uuid: str) -> bool:
    """Whether a GPU has a record, even an unreadable one; true if unknown."""
    try:
        return record_path(directory, uuid).exists()
    except OSError:
        return True


def _watts(value: float) -> float:
    if not 0 < float(value) < math.inf:
        raise ValueError(f"{value} W")
    return float(value)


def recorded_gpus(directory: Path) -> list[str]:
    """Return the UUIDs of the GPUs that have a record, in order.

    Raises:
        DeviceError: If the directory cannot be read.
    """
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
