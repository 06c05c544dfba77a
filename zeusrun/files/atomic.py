"""Replaces files whole: whoever reads one finds the content before a write or after it."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# What link(2) answers on file systems without hard links, or out of them.
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
) -> None:
    """Replace a file, or make it, with mode 0600.

    Killed or failing at any step, it leaves the previous or the new content. It removes the
    temporary file that a killed writer left.

    Args:
        path: What to replace. Its directory exists.
        content: The new content.
        fresh: The temporary file in the same file system, by default ``temporary_path``. Processes
            that may write at the same time need one each.
        durable: Whether the content has to survive a power cut once this returns. The directory of
            ``path`` is synced, too.
        kept: Where the previous content is kept; ``None`` to keep it nowhere.

    Raises:
        OSError: If a step fails.
    """
    fresh = temporary_path(path) if fresh is None else fresh
    try:
        _write(fresh, content, durable=durable)
        if kept is not None:
            keep_link(path, kept)
        fresh.replace(path)
    finally:
        remove_leftover(fresh)
    if durable:
        sync_directory(path.parent)


def keep_link(path: Path, target: Path) -> None:
    """Keep the present content of a file under another name, too; no file, nothing to keep.

    Raises:
        OSError: If a step fails.
    """
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
        # Renaming onto another link of the same file does nothing and leaves both (rename(2)).
        remove_leftover(spare)


def remove_leftover(path: Path) -> None:
    """Remove the temporary file of a writer that was killed; it does not matter if that fails."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory survive a power cut.

    Raises:
        OSError: If that fails.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot, and need not
            raise
    finally:
        os.close(descriptor)


def _write(path: Path, content: bytes, *, durable: bool) -> None:
    path.unlink(missing_ok=True)
    # Exclusive, so that a link planted under this name is refused and not followed.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb") as file:  # noqa: PTH123 - a descriptor, for the mode
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
