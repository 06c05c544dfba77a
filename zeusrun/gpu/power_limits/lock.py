"""The lock on a GPU's power limit, which one zeusrun holds until it ends."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from zeusrun.errors import DeviceError
from zeusrun.files.lock import FileLock, is_locked
from zeusrun.files.private import make_folder


class LimitLock:
    """The lock of one GPU, by its UUID and the directory of its record.

    It is a name in Linux' abstract socket namespace (unix(7)): all users of a network namespace
    share it without files and permissions, and the kernel frees it with the last process that holds
    it. Containers with a common directory of records also see a locked file there.
    """

    def __init__(self, uuid: str, directory: Path) -> None:
        self._uuid, self._directory = uuid, directory
        self._socket: socket.socket | None = None
        self._file: FileLock | None = None

    def acquire(self) -> bool:
        """Take the lock; return whether it was free. ``DeviceError`` if there are no such locks."""
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            name.bind(f"\0zeusrun/power-limit/{self._uuid}")
        except OSError as error:
            name.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise DeviceError(f"{self._uuid}: its limit cannot be locked: {error}") from error
        self._socket = name
        lock = FileLock(_lock_path(self._directory, self._uuid))
        try:
            make_folder(self._directory)
            if not lock.acquire():
                self.release()
                return False
            self._file = lock
        except OSError:
            pass  # the file cannot exist, so there is no record either, and no need for its lock
        return True

    def filenos(self) -> list[int]:
        """Return the descriptors that a guard inherits."""
        return [held.fileno() for held in (self._socket, self._file) if held is not None]

    def release(self) -> None:
        """Release the lock. More than once is fine."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._file is not None:
            self._file.release()
            self._file = None


def is_held(uuid: str, directory: Path) -> bool:
    """Whether a process holds the lock of a GPU now, in any network namespace; takes no lock."""
    name = f"@zeusrun/power-limit/{uuid}"
    try:
        lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return True  # if unknown, assume that the holder is alive
    bound = any(line.endswith(f" {name}") for line in lines)
    return bound or is_locked(_lock_path(directory, uuid)) is True


def _lock_path(directory: Path, uuid: str) -> Path:
    return directory / f"{uuid}.lock"
