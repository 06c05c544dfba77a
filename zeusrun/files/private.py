"""Files and folders for their owner alone: mode 0600 or 0700, and no symbolic link is followed.

A training script may put anything into its run directory. zeusrun never writes through a link
there, and never waits for a pipe. Descriptors are closed on exec.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# Without O_NONBLOCK, opening a pipe waits for its other end. Regular files ignore the flag.
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_FILE = {errno.ELOOP, errno.ENXIO}  # a link, a socket


def open_for_writing(path: Path | str, flags: int) -> int:
    """Open a file with flags for ``os.open``; if this creates it, its mode is 0600."""
    return os.open(path, flags | _FLAGS, 0o600)


def open_for_reading(path: Path | str) -> int:
    """Open a regular file. A link, a pipe or a device raises ``FileNotFoundError``."""
    missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    try:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise missing from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # reading a directory raises a clear error
        return descriptor
    os.close(descriptor)
    raise missing


def read_file(path: Path | str, max_bytes: int) -> bytes:
    """Return at most ``max_bytes`` from the beginning of a regular file."""
    with open(open_for_reading(path), "rb") as file:
        return file.read(max_bytes)


def write_file(path: Path | str, content: bytes) -> None:
    """Make or overwrite a file with mode 0600."""
    descriptor = open_for_writing(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
        file.write(content)


def make_folder(path: Path) -> None:
    """Make a directory and its missing parents, all with mode 0700."""
    if not path.parent.exists():
        make_folder(path.parent)
    while True:
        try:
            path.mkdir(mode=0o700)
        except FileExistsError as there:
            try:
                if not stat.S_ISDIR(path.stat().st_mode):
                    raise
            except FileNotFoundError:
                if path.is_symlink():
                    raise there from None
                continue  # another process removed it just now
        return
