"""Replaces whole files: a reader sees the content before a write or after it."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# What link(2) returns on file systems without hard links, or if there are too many.
_CANNOT_LINK = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def temporary_path(path: Path) -> Path:
    """Return the file that is written before it replaces another one."""
    return path.with_name(path.name + ".tmp")


def replace_file(
    path: Path,
    content: bytes,
    *,
    fresh: Path | None = None,
    durable: bool = True,
    kept: Path | None = None,
    mode: int = 0o600,
) -> None:
    """Make or replace a file.

    Killed or failing at any step, it leaves the previous or the new content. It removes the
    temporary file that a killed writer left.

    Args:
        path: The file. Its directory exists.
        content: The new content.
        fresh: The temporary file. Processes that may write at the same time need one each.
        durable: Whether the content must survive a power cut once this returns.
        kept: Where to keep the previous content; ``None`` to keep it nowhere.
        mode: Permissions of the file, less the umask.
    """
    fresh = temporary_path(path) if fresh is None else fresh
    try:
        _write(fresh, content, durable=durable, mode=mode)
        if kept is not None:
            keep_link(path, kept)
        fresh.replace(path)
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
    if durable:
        sync_directory(path.parent)


def keep_link(path: Path, target: Path) -> None:
    """Keep the present content of a file, if there is one, under a second name."""
    spare = path.with_name(path.name + ".bak.tmp")
    try:
        spare.unlink(missing_ok=True)
        try:
            os.link(path, spare)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
            _write(spare, path.read_bytes(), durable=True)
        spare.replace(target)
    finally:
        # rename(2) does nothing if both names are links to the same file; then the spare is left.
        with suppress(OSError):
            spare.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot, and need not
            raise
    finally:
        os.close(descriptor)


def _write(path: Path, content: bytes, *, durable: bool, mode: int = 0o600) -> None:
    path.unlink(missing_ok=True)
    # Exclusive: if somebody makes a link under this name, opening fails instead of following it.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(path, flags, mode), "wb") as file:  # noqa: PTH123 - a descriptor, for the mode
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
