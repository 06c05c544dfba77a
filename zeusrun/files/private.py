"""Files and folders for their owner alone: mode 0600 or 0700, and no symbolic link is followed.

A training script may put anything into its run directory. zeusrun never writes through a link
there, and never waits for a pipe. Descriptors are closed on exec.

``replace_file`` replaces whole files: a reader sees the content before a write or after it.

Each file of the home names the version of its format, and a newer one is refused. A reader ignores
fields that it does not know. A change needs a new version if an older reader would misread the
file, or lose data when it writes the file again. zeusrun 0.1.0 writes version 1.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from zeusrun.errors import HistoryError, ZeusrunError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Without O_NONBLOCK, opening a pipe waits for its other end. Regular files ignore the flag.
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_FILE = {errno.ELOOP, errno.ENXIO}  # a link, a socket
_LOG_BYTES = 1 << 20

NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""With these errors, a file cannot grow."""


def open_for_writing(path: Path | str, flags: int) -> int:
    """Open a file with flags for ``os.open``; if this creates it, its mode is 0600."""
    return os.open(path, flags | _FLAGS, 0o600)


def open_log(path: Path) -> int:
    """Open a log to append to. Beyond 1 MB a new one begins; the old one is kept beside it."""
    with suppress(FileNotFoundError):
        if path.stat().st_size > _LOG_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
    return open_for_writing(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def open_for_reading(path: Path | str) -> int:
    """Open a regular file.

    Raises:
        FileNotFoundError: Also for a link, a pipe or a device.
        IsADirectoryError: For a directory.
    """
    missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    try:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise missing from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
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


# What link(2) returns on file systems without hard links, between two, or if there are too many.
_CANNOT_LINK = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


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
    spare = target.with_name(target.name + ".tmp")
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


_Kind = TypeVar("_Kind")

_PLAIN: dict[str, set[type]] = {"str": {str}, "float": {int, float}, "int": {int}, "bool": {bool}}
_TOO_LARGE = 1e11  # no time in Unix seconds is so large


def check_version(
    record: dict[str, Any], known: int, path: Path, error: type[ZeusrunError] = HistoryError
) -> None:
    """Check the ``version`` of a file: a newer zeusrun may have written it.

    Raises:
        HistoryError: If the version is newer than ``known``; or ``error``, if it is given.
        ValueError: If there is no version: the file is damaged.
    """
    version = record.get("version")
    if type(version) is not int or version < 1:
        raise ValueError("it names no version")
    if version > known:
        raise error(
            f"{path} was written by a newer zeusrun (format {version}; this one knows {known}); "
            "upgrade zeusrun, or use another ZEUSRUN_HOME"
        )


def build_known(kind: type[_Kind], record: Mapping[str, Any], **own: object) -> _Kind:
    """Return a dataclass with the fields that a record has and it knows; ``own`` ones win.

    Raises:
        TypeError: If a field for a text, a number or a flag holds another kind of value, or a
            number that no file of the home contains.
    """
    known = {each.name: record[each.name] for each in fields(kind) if each.name in record}  # type: ignore[arg-type]
    for each in fields(kind):  # type: ignore[arg-type]
        value, (first, *none) = known.get(each.name), str(each.type).split(" | ")
        if each.name not in known or first not in _PLAIN or (none and value is None):
            continue
        wrong = isinstance(value, (int, float)) and not 0 <= value < _TOO_LARGE
        if wrong or type(value) not in _PLAIN[first]:
            raise TypeError(f"{each.name} is {value!r}")
    return kind(**{**known, **own})
