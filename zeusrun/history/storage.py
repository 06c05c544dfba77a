"""The disk: writes that happen wholly or not at all, one writer at a time, errors that explain."""

from __future__ import annotations

import errno
import os
import shlex
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from zeusrun.errors import HistoryError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ACCESS = "give yourself access to it, or point ZEUSRUN_HOME to a directory of your own"
_IN_THE_WAY = "a directory is expected there: move the file in the way, or change ZEUSRUN_HOME"
_ADVICE = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some of your quota on that disk",
    errno.EFBIG: "raise the file size limit (`ulimit -f`)",
    errno.EROFS: _ACCESS,
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.ENAMETOOLONG: "shorten the job's name",
}
# What link(2) answers on file systems without hard links, or out of them.
_CANNOT_LINK = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def copy_path(path: Path) -> Path:
    """Return where the state before the last write of a file is kept."""
    return path.with_name(path.name + ".bak")


def lock_path(path: Path) -> Path:
    """Return the lock that a writer of a file holds; the file itself is replaced by each write."""
    return path.with_name(path.name + ".lock")


@contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """Turn an ``OSError`` into a ``HistoryError`` with the path, the reason and what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        advice = _ADVICE.get(error.errno or 0, "check that disk")
        raise HistoryError(f"cannot {doing} the history {path}: {reason}; {advice}") from error


@contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Be the only writer of a file among all processes, making its directory if needed.

    Raises:
        HistoryError: If another holds the lock for longer than ``timeout_s`` seconds, or the lock
            cannot be taken here.
    """
    lock = FileLock(lock_path(path), mode=0o600)
    held = shlex.quote(str(lock_path(path)))
    with explained("lock", path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            # A writer is done in a few ms; the library's own interval would make others idle.
            lock.acquire(timeout=timeout_s, poll_interval=0.01)
        except Timeout as error:  # an OSError, too
            raise HistoryError(
                f"another process has held the lock {held} for {timeout_s:g} s; it is probably "
                f"stopped: `fuser -v {held}` names it; end or resume it, and try again"
            ) from error
    try:
        yield
    finally:
        lock.release()


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file for good, keeping the previous one as its copy. The caller holds the lock.

    Killed or failing at any step, it leaves the previous or the new content under ``path``, and
    never a part. Left-over temporary files have fixed names, so the next write sweeps them.

    Raises:
        OSError: If a step fails.
    """
    fresh = path.with_name(path.name + ".tmp")
    try:
        _write_new(fresh, data)
        _keep_copy(path)
        fresh.replace(path)
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _write_new(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    # Exclusive, so that a link planted under this name is refused and not followed.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, for the mode
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _keep_copy(path: Path) -> None:
    spare = path.with_name(path.name + ".bak.tmp")
    try:
        spare.unlink(missing_ok=True)
        try:
            os.link(path, spare)
        except FileNotFoundError:
            return  # the first write
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
            _write_new(spare, path.read_bytes())
        spare.replace(copy_path(path))
    finally:
        # Renaming onto another link of the same file does nothing and leaves both (rename(2)).
        with suppress(OSError):
            spare.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot, and need not
            raise
    finally:
        os.close(descriptor)
