"""The disk: writes that happen wholly or not at all, one writer at a time, errors that explain."""

from __future__ import annotations

import errno
import itertools
import re
import shlex
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from zeusrun.errors import ACCESS, SHORTAGES, HistoryError
from zeusrun.files.atomic import keep_link, remove_leftover, replace_file, sync_directory
from zeusrun.files.lock import FileLock
from zeusrun.files.private import make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_IN_THE_WAY = "a directory is expected there: move the file in the way, or change ZEUSRUN_HOME"
_ADVICE = {
    **SHORTAGES,
    errno.EROFS: ACCESS,
    errno.EACCES: ACCESS,
    errno.EPERM: ACCESS,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.ENAMETOOLONG: "shorten the job's name",
}
_PATIENCE_S = 1.0  # how long to wait before looking whether others come to an end


def copy_path(path: Path) -> Path:
    """Return where the state before the last write of a file is kept."""
    return path.with_name(path.name + ".bak")


def volume_path(path: Path, number: int) -> Path:
    """Return where a volume of a main file is."""
    return _volumes_directory(path) / f"{number:06d}.json"


def stored_volumes(path: Path) -> list[int]:
    """Return the numbers of all volumes on disk, the file's own or not, lowest first."""
    try:
        names = [entry.name for entry in _volumes_directory(path).iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(name[:-5]) for name in names if re.fullmatch(r"[0-9]{6,18}\.json", name))


def written_at(path: Path) -> datetime:
    """Return when a file was written; a copy that is a hard link was when its state was."""
    return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)


def restore_command(job: str) -> str:
    """Return what a message about damage tells to type."""
    return f"`zeusrun repair --restore {shlex.quote(job)}`"


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
        HistoryError: If nobody has written for ``timeout_s`` seconds and the lock is still not
            free, or it cannot be taken here.
    """
    lock = FileLock(lock_path(path))
    with explained("lock", path):
        make_folder(path.parent)
        _wait_for(lock, path, timeout_s)
    try:
        yield
    finally:
        with explained("unlock", path):
            lock.release()


def _wait_for(lock: FileLock, path: Path, timeout_s: float) -> None:
    """Take a lock, however many are waiting, as long as those who have it come to an end."""
    seen, since_t = _state(path), time.monotonic()
    while not lock.acquire(min(_PATIENCE_S, timeout_s)):
        now = _state(path)
        if now != seen:
            seen, since_t = now, time.monotonic()
        elif time.monotonic() - since_t >= timeout_s:
            held = shlex.quote(str(lock_path(path)))
            raise HistoryError(
                f"another process has held the lock {held} for {timeout_s:g} s; it is "
                f"probably stopped: `fuser -v {held}` names it; end or resume it, and try again"
            )


def _state(path: Path) -> tuple[int, int] | None:
    """Return what is another with every write of a file; ``None`` while there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def write_volumes(path: Path, volumes: Mapping[int, bytes]) -> None:
    """Write volumes of a main file for good. The caller holds the lock, and lists them afterwards.

    It also removes the temporary file of a writer that was killed. It does so even if there is no
    volume to write, because about 99 writes in 100 write none.

    Raises:
        OSError: If a step fails.
    """
    directory = _volumes_directory(path)
    fresh = directory / "volume.tmp"
    if not volumes:
        remove_leftover(fresh)
        return
    directory.mkdir(mode=0o700, exist_ok=True)
    for number, content in volumes.items():
        replace_file(volume_path(path, number), content, fresh=fresh)
    sync_directory(path.parent)


def set_aside(path: Path) -> Path | None:
    """Rename a damaged file out of the way, over nothing; ``None`` if there is none."""
    with explained("set aside", path):
        target = _unused(path, "corrupt")
        try:
            path.rename(target)
        except FileNotFoundError:
            return None
    return target


def keep_aside(path: Path, why: str) -> Path:
    """Keep a file that is about to be replaced under another name, which it never had before."""
    with explained("set aside", path):
        target = _unused(path, why)
        keep_link(path, target)
    return target


def latest_aside(path: Path) -> Path | None:
    """Return where a file was set aside last for being damaged."""
    return max(path.parent.glob(f"{path.name}.corrupt-*"), default=None)


def _unused(path: Path, why: str) -> Path:
    stamp = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    names = itertools.chain([stamp], (f"{stamp}-{number}" for number in itertools.count(2)))
    targets = (path.with_name(f"{path.name}.{why}-{name}") for name in names)
    return next(target for target in targets if not target.exists())


def _volumes_directory(path: Path) -> Path:
    return path.with_suffix(".volumes")
