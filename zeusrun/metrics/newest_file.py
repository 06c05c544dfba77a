"""Finds the file that a trial writes: the newest changed file that a glob matches."""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.jobfile.placeholders import expand_placeholders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeusrun.metrics.rows import Rows, SourceContext

_PAUSE = 100  # times the duration of a search, so that searching takes 1 % of the time
_LAST_BYTES = 64


class NewestFile:
    """Searches repeatedly for the file that a trial writes.

    Args:
        run: What is known of the trial.
        rows: Takes the warnings.
        names: The files that count, such as ``*tfevents*``; they are also looked for in a
            directory that matches, under ``inside``.
        inside: Globs relative to such a directory.
        one: Whether to warn if the trial writes several such files.
    """

    def __init__(
        self,
        run: SourceContext,
        rows: Rows,
        *,
        names: str = "*",
        inside: tuple[str, ...] = (),
        one: bool = True,
    ) -> None:
        values = {name: glob.escape(value) for name, value in run.values.items()}
        self._pattern = expand_placeholders(run.section.path or "", values)
        self._workdir, self._names, self._one = run.workdir, names, one
        self._inside = () if self._pattern.endswith("**") else inside
        self._rows = rows
        self._next_t = 0.0
        self._active: list[str] = []  # in the order in which they came
        # What was there before the trial.
        self._old = {path: (status, _end(path, status)) for path, status in self._match()}

    def find(self, *, final: bool = False) -> Path | None:
        """Return the newest file of the trial; ``None`` if there is none."""
        now_t = time.monotonic()
        if final or now_t >= self._next_t:
            found = dict(self._match())
            fresh = [path for path, now in found.items() if self._is_new(path, now)]
            self._active += sorted(fresh, key=lambda path: found[path].st_mtime_ns)
            self._active = [path for path in self._active if path in found] or self._active[-1:]
            if self._one and len(self._active) > 1:
                newest = os.path.relpath(self._active[-1], self._workdir)
                self._rows.warn(
                    "two",
                    f"metrics.path matches {len(self._active)} files of this run; only the newest "
                    f"is read, {newest}",
                )
            ended_t = time.monotonic()
            self._next_t = ended_t + _PAUSE * (ended_t - now_t)
        return Path(self._active[-1]) if self._active else None

    def newest_old(self) -> Path | None:
        """Return the newest file from before the trial."""
        newest = max(self._old, key=lambda path: self._old[path][0].st_mtime_ns, default=None)
        return None if newest is None else Path(newest)

    def old_bytes(self, path: Path) -> int:
        """Return how many bytes at the start of a file are from before the trial."""
        with contextlib.suppress(OSError, KeyError):  # deleted meanwhile, or not there before
            old, end = self._old[str(path)]
            if os.path.samestat(old, path.stat()) and _end(str(path), old) == end:
                return old.st_size
        return 0

    def _match(self) -> Iterator[tuple[str, os.stat_result]]:
        seen = set()
        # Path.glob takes no absolute pattern.
        matches = glob.iglob(self._pattern, root_dir=self._workdir, recursive=True)  # noqa: PTH207
        for match in matches:
            path = Path(os.path.realpath(self._workdir / match))
            folder = path.is_dir()
            files = (file for inside in self._inside for file in path.glob(inside))
            for file in files if folder else [path]:
                if file in seen or not fnmatch.fnmatch(file.name, self._names):
                    continue
                seen.add(file)
                with contextlib.suppress(OSError):  # deleted meanwhile
                    status = file.stat()
                    if stat.S_ISREG(status.st_mode):  # opening a pipe would block
                        yield str(file), status

    def _is_new(self, path: str, now: os.stat_result) -> bool:
        if path in self._active or path not in self._old:
            return path not in self._active
        old, _ = self._old[path]
        same = (now.st_size, now.st_mtime_ns) == (old.st_size, old.st_mtime_ns)
        return not (same and os.path.samestat(old, now))


def _end(path: str, old: os.stat_result) -> bytes:
    """Return the last bytes of a file's old part."""
    with contextlib.suppress(OSError), open(path, "rb") as file:  # noqa: PTH123
        file.seek(max(0, old.st_size - _LAST_BYTES))
        return file.read(min(old.st_size, _LAST_BYTES))
    return b""
