"""Reads files of one row a line: tables with a header (``csv``), and JSON objects (``jsonl``)."""

from __future__ import annotations

import contextlib
import csv
import glob
import json
import os
import re
import stat
import time
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.files.tail import LineTail
from zeusrun.jobfile.placeholders import expand_placeholders
from zeusrun.metrics.rows import Rows, RowSource, number_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from zeusrun.metrics.rows import SourceContext

    Parse: TypeAlias = Callable[[bytes], Sequence[tuple[int, Mapping[str, object]]]]

_PAUSE = 100  # times the duration of a search, so that searching takes 1 % of the time
_LAST_BYTES = 64
_MAX_CHUNKS = 8  # 2 MB at a time, so that supervision never waits long


class NewestFile:
    """Searches repeatedly for the file that a trial writes: the newest that ``path`` matches."""

    def __init__(self, run: SourceContext, rows: Rows) -> None:
        values = {name: glob.escape(value) for name, value in run.values.items()}
        self._pattern = expand_placeholders(run.section.path or "", values)
        self._workdir, self._rows = run.workdir, rows
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
            if len(self._active) > 1:
                newest = os.path.relpath(self._active[-1], self._workdir)
                self._rows.warn(
                    "two",
                    f"metrics.path matches {len(self._active)} files of this run; only the newest "
                    f"is read, {newest}",
                )
            ended_t = time.monotonic()
            self._next_t = ended_t + _PAUSE * (ended_t - now_t)
        return Path(self._active[-1]) if self._active else None

    def old_bytes(self, path: Path) -> int:
        """Return how many bytes at the start of a file are from before the trial."""
        with contextlib.suppress(OSError, KeyError):  # deleted meanwhile, or not there before
            old, end = self._old[str(path)]
            if os.path.samestat(old, path.stat()) and _end(str(path), old) == end:
                return old.st_size
        return 0

    def _match(self) -> Iterator[tuple[str, os.stat_result]]:
        # Path.glob takes no absolute pattern.
        matches = glob.iglob(self._pattern, root_dir=self._workdir, recursive=True)  # noqa: PTH207
        for path in sorted({os.path.realpath(self._workdir / match) for match in matches}):
            with contextlib.suppress(OSError):  # deleted meanwhile
                status = os.stat(path)  # noqa: PTH116
                if stat.S_ISREG(status.st_mode):  # opening a pipe would block
                    yield path, status

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


class _Table:
    """Parses the lines of a table. The first is the header, which may come again, and change."""

    def __init__(self, rows: Rows) -> None:
        self._header: list[str] = []
        self._delimiter, self._rows = ",", rows

    def __call__(self, line: bytes) -> Sequence[tuple[int, Mapping[str, str]]]:
        text = line.decode("utf-8-sig", errors="replace")
        if text.startswith("#") and len(self._split(text)) != len(self._header):
            return []  # a comment
        if not self._header:
            self._delimiter = max(",;\t", key=text.count)
        cells = self._split(text)
        if not self._header or self._is_header(cells):
            self._take_header(cells)
            return []
        if len(cells) != len(self._header):
            header = self._delimiter.join(self._header)
            raise ValueError(
                f"has {len(cells)} cells, but the header has {len(self._header)} ({header:.60})"
            )
        pairs = zip(self._header, cells, strict=True)
        row = {name: cell for name, cell in pairs if name and cell}
        return [(hash(frozenset(row.items())), row)]

    def _split(self, text: str) -> list[str]:
        try:
            return [cell.strip() for cell in next(csv.reader([text], delimiter=self._delimiter))]
        except csv.Error as error:
            raise ValueError(f"is not a row of a table: {error}") from error

    def _is_header(self, cells: Sequence[str]) -> bool:
        """Whether a row has the names of the header: all that are no numbers, or nothing else."""
        words = {name for name in self._header if name and number_of(name) is None}
        named = not set(self._header).isdisjoint(filter(None, cells))
        only = named and all(number_of(cell) is None for cell in cells)
        return only or bool(words and words <= set(cells))

    def _take_header(self, cells: Sequence[str]) -> None:
        """Take the names of the columns; two of one name have none."""
        twice = sorted({name for name in cells if name and cells.count(name) > 1})
        self._header = ["" if name in twice else name for name in cells]
        for name in twice:
            places = " and ".join(str(at) for at, each in enumerate(cells, 1) if each == name)
            self._rows.warn(
                f"twice {name}",
                f"the columns {places} are both named {name!r}, so neither is read; give each "
                "column a name of its own, or name another one in metrics.name",
            )


def _unique(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise KeyError(min(name for name in names if names.count(name) > 1))
    return row


_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


def _parse_objects(line: bytes) -> Sequence[tuple[int, Mapping[str, object]]]:
    """Return the objects of a line: two processes, or a missing line break, make several."""
    text, at, rows = line.decode("utf-8-sig", errors="replace").strip(), 0, []
    try:
        while at < len(text):
            row, end = _DECODER.raw_decode(text, at)
            rows.append((row, text[at:end]))
            at = _SPACE.match(text, end).end()  # type: ignore[union-attr] # it may be empty
    except KeyError as error:
        raise ValueError(f"has the key {error} twice") from None
    except (ValueError, RecursionError) as error:
        raise ValueError("is not JSON") from error
    if not all(isinstance(row, dict) for row, _ in rows):
        raise ValueError("is not a JSON object")
    return [(hash(text), dict(_flatten(row))) for row, text in rows]


def _flatten(row: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values; those of an object within have names such as ``val.acc``."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{before}{name}.")
        elif value is not None:
            yield before + name, value


class LineFile(RowSource):
    """Reads the newest file of a trial, even if the trial rewrites or deletes it.

    ``create_parser`` returns a function that gets the lines of a file from its start. For each, it
    returns its rows, with a hash that identifies each; none for a header. It raises ``ValueError``.
    """

    def __init__(
        self, run: SourceContext, kind: str, create_parser: Callable[[Rows], Parse]
    ) -> None:
        super().__init__(Rows(run, kind))
        self._files = NewestFile(run, self._rows)
        self._create_parser = create_parser
        self._path: Path | None = None

    def _collect(self, *, final: bool) -> bool:
        """Read the rest of the present file, then a newer one."""
        if self._path is not None:
            self._read_lines(final=final)
        path = self._files.find(final=final)
        if path is not None and path != self._path:
            self._follow(path)
            self._read_lines(final=final)
        return self._path is not None

    def _follow(self, path: Path) -> None:
        self._path = path
        self._tail = LineTail(path, rewritten=True)
        # Hashes of its rows, which show what is new after it was rewritten, and the present row.
        self._marks, self._position = array("q"), 0
        self._old_bytes, self._old_rows = self._files.old_bytes(path), 0
        self._restarts = 0

    def _restart(self) -> None:
        """Read the file from its start again; the rows that it had before are not new."""
        if self._restarts:
            self._old_bytes = 0
        self._restarts = self._tail.restarts
        self._parse = self._create_parser(self._rows)
        self._position = self._offset = 0
        self._rows.restart()

    def _read_lines(self, *, final: bool) -> None:
        chunks = 0
        while chunks < _MAX_CHUNKS or final:
            lines = self._tail.read_lines(final=final)
            if self._tail.restarts != self._restarts:
                self._restart()
            if not lines:
                return
            chunks += 1
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        began, self._offset = self._offset, self._offset + len(line) + 1
        line = line.replace(b"\0", b"").strip(b"\r\n ")
        try:
            found = self._parse(line) if line else []
        except ValueError as error:
            self._rows.warn("line", f"a line of {self._path} {error}; such lines are ignored")
            return
        for mark, row in found:
            before = self._position < self._old_rows
            new = self._is_new(mark)
            if began < self._old_bytes:
                self._old_rows = self._position
            elif new or not before:
                self._old_rows = min(self._old_rows, self._position)
                self._rows.take(row, self._tail.modified_s or 0.0, emit=new)

    def _is_new(self, mark: int) -> bool:
        """Whether the next row of the file differs from the previous row at this place."""
        at, self._position = self._position, self._position + 1
        if at < len(self._marks):
            if self._marks[at] == mark:
                return False
            del self._marks[at:]
        self._marks.append(mark)
        return True


def open_source(run: SourceContext) -> LineFile:
    """Open the file that ``metrics.path`` names. Blank cells and ``null`` are no values."""
    if run.section.source == "csv":
        return LineFile(run, "column", _Table)
    return LineFile(run, "key", lambda _: _parse_objects)
