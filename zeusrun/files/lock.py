"""A file lock that the kernel releases when its holder dies (flock(2))."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zeusrun.errors import HistoryError, writes_to
from zeusrun.files.private import make_folder, open_for_writing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typing_extensions import Self

_NO_FILE = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}
_PERIOD_S = 0.01  # a writer needs a few ms


class FileLock:
    """One process or thread has the lock at a time; each needs an object of its own.

    The file stays after release: if it were removed, two processes could hold the lock. A ``with``
    block does not take the lock; it releases it at its end.
    """

    def __init__(self, path: Path) -> None:
        """Prepare; nothing is locked yet."""
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, timeout_s: float = 0.0) -> bool:
        """Take the lock, creating its file with mode 0600; return whether it was free in time.

        Raises:
            OSError: If the file cannot be opened, or a symbolic link is in its place. Removing the
                link could remove the lock that another process has just made.
        """
        until_t = time.monotonic() + timeout_s
        while not self._try():
            if time.monotonic() >= until_t:
                return False
            time.sleep(_PERIOD_S)
        return True

    def inherit(self, descriptor: int) -> None:
        """Hold the lock of which the process that started this one has given a descriptor.

        Raises:
            OSError: If it is not a descriptor of the file.
        """
        if not os.path.samestat(os.fstat(descriptor), self.path.stat()):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), os.fspath(self.path))
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the descriptor, for a process that inherits the lock.

        Raises:
            ValueError: If the lock is not held.
        """
        if self._descriptor is None:
            raise ValueError(f"the lock {self.path} is not held")
        return self._descriptor

    def release(self) -> None:
        """Release the lock. More than once is fine."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()

    def _try(self) -> bool:
        if self._descriptor is not None:
            return True
        descriptor = open_for_writing(self.path, os.O_RDWR | os.O_CREAT)
        if descriptor < 3:  # where a process that inherits it has its standard streams
            low, descriptor = descriptor, fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
            os.close(low)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its holder may have removed the file in between, with its whole folder.
            if os.fstat(descriptor).st_nlink:
                self._descriptor, descriptor = descriptor, -1
                return True
        except BlockingIOError:
            pass
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(self.path)) from error
        finally:
            if descriptor != -1:
                os.close(descriptor)
        return False


class SafeLock(FileLock):
    """A lock that creates its folder, and whose errors say what to do."""

    def acquire(self, timeout_s: float = 0.0) -> bool:
        """Take the lock; return whether it was free in time.

        Raises:
            HistoryError: If the home cannot be written.
        """
        with writes_to(self.path.parent):
            make_folder(self.path.parent)
            return super().acquire(timeout_s)

    @contextmanager
    def held(self, timeout_s: float, otherwise: str) -> Iterator[None]:
        """Hold the lock; if it is not free in time, raise ``HistoryError`` with ``otherwise``."""
        with self:
            if not self.acquire(timeout_s):
                raise HistoryError(otherwise)
            yield

    def release(self) -> None:
        """Release the lock; raises ``HistoryError`` as ``acquire`` does."""
        with writes_to(self.path.parent):
            super().release()


def is_locked(path: Path) -> bool | None:
    """Whether somebody holds the lock of a file; ``None`` if that is unknown. Creates nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return False if error.errno in _NO_FILE else None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others may check, too
    except OSError as error:
        return True if isinstance(error, BlockingIOError) else None
    finally:
        os.close(descriptor)
    return False
