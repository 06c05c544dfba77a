"""A lock on a file that the operating system frees when its holder dies (flock(2))."""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

from zeusrun.errors import unwritable
from zeusrun.files.private import make_folder, remove_link

if TYPE_CHECKING:
    from pathlib import Path

_PERIOD_S = 0.01  # a writer is done in a few ms


class FileLock:
    """One process, or one of its threads, has it at a time; each takes it by an object of its own.

    The file stays when the lock is let go: removing it would let two have it.
    """

    def __init__(self, path: Path) -> None:
        """Prepare; nothing is locked yet."""
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, timeout_s: float = 0.0) -> bool:
        """Take the lock, making its file with mode 0600; return whether it became free in time.

        Raises:
            OSError: If the file cannot be opened, or its file system knows no locks.
        """
        until_t = time.monotonic() + timeout_s
        while not self._try():
            if time.monotonic() >= until_t:
                return False
            time.sleep(_PERIOD_S)
        return True

    def fileno(self) -> int:
        """Return the descriptor, for a process that inherits the lock and keeps it.

        Raises:
            ValueError: If it is not held.
        """
        if self._descriptor is None:
            raise ValueError(f"the lock {self.path} is not held")
        return self._descriptor

    def release(self) -> None:
        """Let go. More than once is fine."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _try(self) -> bool:
        if self._descriptor is not None:
            return True
        remove_link(self.path)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its holder may have removed the file in between, with the whole directory.
            if os.fstat(descriptor).st_nlink:
                self._descriptor, descriptor = descriptor, -1
                return True
        except BlockingIOError:
            pass
        finally:
            if descriptor != -1:
                os.close(descriptor)
        return False


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file; nothing is made or changed.

    Raises:
        OSError: If there is no such file, or the lock cannot be asked.
        ValueError: If the path cannot be one.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class SafeLock(FileLock):
    """A lock whose folder is made, and whose errors say what to do."""

    def acquire(self, timeout_s: float = 0.0) -> bool:
        """Take it; return whether it became free in time.

        Raises:
            HistoryError: If the home cannot be written.
        """
        try:
            make_folder(self.path.parent)
            return super().acquire(timeout_s)
        except OSError as error:
            raise unwritable(self.path.parent, error) from error
