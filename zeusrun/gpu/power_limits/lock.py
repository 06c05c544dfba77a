"""The right to change a GPU's power limit: one zeusrun has it, until it is gone.

It is a name in Linux' abstract socket namespace (unix(7)): no file and no permission is in the
way between users of a machine (to be exact, of a network namespace), and the kernel frees it with
the last process that has it. A guard that inherits it keeps it until the GPU is as it was found.
Containers with network namespaces of their own, and a directory of records in common, see each
other by a locked file in it.
"""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from zeusrun.errors import DeviceError
from zeusrun.files.lock import FileLock, is_locked
from zeusrun.files.private import make_folder


class LimitLock:
    """The lock of one GPU."""

    def __init__(self, uuid: str, directory: Path) -> None:
        """Prepare; nothing is locked yet.

        Args:
            uuid: Of the GPU.
            directory: Of its record.
        """
        self._uuid, self._directory = uuid, directory
        self._socket: socket.socket | None = None
        self._file: FileLock | None = None

    def acquire(self) -> bool:
        """Take the lock; return whether it was free.

        Raises:
            DeviceError: If the kernel knows no such locks.
        """
        if not self._bind():
            return False
        if self._lock_file():
            return True
        self.release()
        return False

    def filenos(self) -> list[int]:
        """Return the descriptors that a guard inherits."""
        return [held.fileno() for held in (self._socket, self._file) if held is not None]

    def release(self) -> None:
        """Let go. More than once is fine."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._file is not None:
            self._file.release()
            self._file = None

    def _bind(self) -> bool:
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            name.bind(f"\0zeusrun/power-limit/{self._uuid}")
        except OSError as error:
            name.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise DeviceError(f"{self._uuid}: its limit cannot be locked: {error}") from error
        self._socket = name
        return True

    def _lock_file(self) -> bool:
        """Lock the file; where there can be none there is no record either, and nothing to see."""
        lock = FileLock(_lock_path(self._directory, self._uuid))
        try:
            make_folder(self._directory)
            if not lock.acquire():
                return False
            self._file = lock
        except OSError:
            pass
        return True


def is_held(uuid: str, directory: Path) -> bool:
    """Whether somebody has the lock of a GPU now.

    Args:
        uuid: Of the GPU.
        directory: Of its record; it shows whoever is in another network namespace.
    """
    return _is_bound(uuid) or _is_file_locked(_lock_path(directory, uuid))


def _lock_path(directory: Path, uuid: str) -> Path:
    return directory / f"{uuid}.lock"


def _is_file_locked(path: Path) -> bool:
    try:
        return is_locked(path)
    except OSError:
        return False


def _is_bound(uuid: str) -> bool:
    """Whether somebody in this network namespace has bound the name of a GPU's lock."""
    name = f"@zeusrun/power-limit/{uuid}"
    try:
        lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return True  # nobody may be called dead on a guess
    return any(line.endswith(f" {name}") for line in lines)
