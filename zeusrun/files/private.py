"""Files and folders for their owner alone, opened without following a link that was put there.

The training script owns its run's directory and may leave anything in it. Nothing of it may make
zeusrun write to, or wait for, something outside: the last two parts of a path are never followed,
the file and its folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# A folder is only gone through, so that it need not be readable.
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe that nobody reads, or writes to, would be waited for; files know no O_NONBLOCK.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_for_writing(path: Path | str, flags: int) -> int:
    """Open a file with mode 0600 if it is made; a link that stands in its place is removed first.

    Two processes that find the same link may remove each other's new file in its place: a file
    that several write to is made before any script runs.

    Args:
        path: The file, in a folder that is there and no link.
        flags: As for ``os.open``: ``os.O_WRONLY | os.O_CREAT``, say.

    Returns:
        A descriptor, closed on exec.

    Raises:
        OSError: If it cannot be opened, or its folder is a link.
    """
    folder, name = os.path.split(path)
    try:
        directory = os.open(folder or ".", _FOLDER)
        try:
            _remove_link(name, directory)
            return _open_own(name, flags | _FILE, directory)
        finally:
            os.close(directory)
    except OSError as error:
        error.filename = os.fspath(path)  # where "rank0.log" is, too
        raise


def _open_own(name: str, flags: int, directory: int) -> int:
    """Open a file that has no other name; one that has is left to it, and made anew."""
    descriptor = os.open(name, flags & ~os.O_TRUNC, 0o600, dir_fd=directory)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return descriptor  # a pipe that somebody reads has no other name, and no length
        if status.st_nlink > 1:
            os.unlink(name, dir_fd=directory)
            os.close(descriptor)
            descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
        elif flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_for_reading(path: Path | str) -> int:
    """Open a regular file; a link, a pipe or a device is no file of a run and counts as missing.

    Returns:
        A descriptor, closed on exec.

    Raises:
        FileNotFoundError: If there is none.
        OSError: If it cannot be opened.
    """
    missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    folder, name = os.path.split(path)
    try:
        directory = os.open(folder or ".", _FOLDER)
        try:
            descriptor = os.open(name, os.O_RDONLY | _FILE, dir_fd=directory)
        finally:
            os.close(directory)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.ENXIO}:  # a link, in one, a socket
            raise missing from error
        error.filename = os.fspath(path)
        raise
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind) or stat.S_ISDIR(kind):  # reading a directory says what is wrong with it
        return descriptor
    os.close(descriptor)
    raise missing


def read_file(path: Path | str, max_bytes: int) -> bytes:
    """Return the beginning of a regular file.

    Raises:
        FileNotFoundError: If there is none.
        OSError: If it cannot be read.
    """
    with open(open_for_reading(path), "rb") as file:
        return file.read(max_bytes)


def write_file(path: Path | str, content: bytes) -> None:
    """Make or overwrite a file with mode 0600.

    Raises:
        OSError: If it cannot be written.
    """
    descriptor = open_for_writing(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
        file.write(content)


def remove_link(path: Path | str) -> None:
    """Remove a symbolic link; anything else stays as it is.

    Raises:
        OSError: If it cannot be removed.
    """
    _remove_link(os.fspath(path), None)


def make_folder(path: Path) -> None:
    """Make a directory and those above it that are missing, all with mode 0700.

    Raises:
        OSError: If one cannot be made, or a file is in the way.
    """
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def _remove_link(name: str, directory: int | None) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISLNK(os.lstat(name, dir_fd=directory).st_mode):
            os.unlink(name, dir_fd=directory)
