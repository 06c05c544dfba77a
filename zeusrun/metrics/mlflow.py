"""MLflow's stores on this machine: the database ``mlflow.db``, or the folder ``mlruns``."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from zeusrun.files.private import read_file
from zeusrun.files.tail import LineTail
from zeusrun.jobfile.placeholders import expand_placeholders
from zeusrun.metrics.rows import Rows, RowSource, StepRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from zeusrun.metrics.rows import SourceContext

    Value: TypeAlias = tuple[str, object, int, float]  # key, value, step, Unix seconds

_SEARCH_S = 1.0
_RUNS = "SELECT run_uuid FROM runs WHERE start_time >= ? ORDER BY start_time DESC, rowid DESC"
_METRICS = (
    "SELECT rowid, CAST(ifnull(key, '') AS TEXT), CASE is_nan WHEN 1 THEN 'nan' ELSE value END, "
    "CAST(step AS INTEGER), CAST(ifnull(timestamp, 0) AS REAL) "
    "FROM metrics WHERE run_uuid = ? AND rowid > ? ORDER BY rowid"
)
_START = re.compile(rb"^start_time: (\d{1,18})\b", re.MULTILINE)
_META_BYTES = 64 << 10


class TrackedRun(RowSource):
    """Reads the newest run that began after the trial did."""

    def __init__(self, run: SourceContext) -> None:
        super().__init__(Rows(run, "key"))
        self._steps = StepRows(self._rows, run.section.epoch)
        names = [run.section.path] if run.section.path else ["mlflow.db", "mlruns"]
        self._paths = [run.workdir / expand_placeholders(name, run.values) for name in names]
        self._stores: dict[Path, _Database | _Folder] = {}
        self._since_ms = int(run.began_s * 1000)

    def _collect(self, *, final: bool) -> bool:
        for path in self._paths:
            # Opening a pipe would block.
            if path not in self._stores and (path.is_dir() or path.is_file()):
                create = _Folder if path.is_dir() else _Database
                self._stores[path] = create(path, self._since_ms, self._rows)
        for store in self._stores.values():
            values = list(store.read(final=final))
            for value in values:
                self._steps.take(*value)
            if values:
                break
        self._steps.end(final=final)
        return any(store.run is not None for store in self._stores.values())


def _newest(runs: Sequence[str], rows: Rows) -> str | None:
    if len(runs) > 1:
        rows.warn("two", f"{len(runs)} runs have begun; only the newest is read, {runs[0]}")
    return runs[0] if runs else None


class _Database:
    """A database of SQLite, read without ever making its writers wait for long."""

    def __init__(self, path: Path, since_ms: int, rows: Rows) -> None:
        self._path, self._since_ms, self._rows = path, since_ms, rows
        self._stamp: object = None
        self._last = 0
        self.run: str | None = None

    def read(self, *, final: bool) -> list[Value]:
        """Return the values that came since the last call."""
        stamp = [_stamp(self._path), _stamp(self._path.with_name(f"{self._path.name}-wal"))]
        if stamp == self._stamp and not final:
            return []
        uri = f"file:{quote(str(self._path.absolute()))}?mode=ro"
        try:
            with contextlib.closing(
                sqlite3.connect(uri, uri=True, timeout=1.0 if final else 0.0)
            ) as database:
                found = self._query(database)
        except sqlite3.OperationalError as error:  # locked, or without its tables: as it is created
            if final and "no such table" not in str(error):
                self._rows.warn("database", f"{self._path} cannot be read: {error}")
            return []
        except sqlite3.DatabaseError as error:
            self._rows.warn("database", f"{self._path} cannot be read: {error}")
            return []
        self._stamp = stamp
        return found

    def _query(self, database: sqlite3.Connection) -> list[Value]:
        runs = [name for (name,) in database.execute(_RUNS, (self._since_ms,))]
        run = _newest(runs, self._rows)
        if run != self.run:
            self.run, self._last = run, 0
            self._rows.restart()
        found = database.execute(_METRICS, (run, self._last)).fetchall()
        if found:
            self._last = found[-1][0]
        return [(key, value, step, ms / 1000) for _, key, value, step, ms in found]


class _Folder:
    """A folder with one file a metric: ``<experiment>/<run>/metrics/<key>``."""

    def __init__(self, path: Path, since_ms: int, rows: Rows) -> None:
        self._path, self._since_ms, self._rows = path, since_ms, rows
        self._search_t = 0.0
        self._tails: dict[str, LineTail] = {}
        self._runs: dict[Path, int] = {}
        self.run: str | None = None

    def read(self, *, final: bool) -> Iterator[Value]:
        """Yield the values that came since the last call."""
        now_t = time.monotonic()
        if final or now_t >= self._search_t:
            self._search()
            self._search_t = now_t + _SEARCH_S
        values = [
            value
            for key, tail in self._tails.items()
            for line in tail.read_lines(final=final)
            if (value := self._read_line(key, line)) is not None
        ]
        yield from sorted(values, key=lambda value: (value[3], value[2]))

    def _search(self) -> None:
        for meta in self._path.glob("*/*/meta.yaml"):
            if meta.parent not in self._runs:
                with contextlib.suppress(FileNotFoundError):  # or a pipe
                    if match := _START.search(read_file(meta, _META_BYTES)):
                        self._runs[meta.parent] = int(match[1])
        fresh = {path: ms for path, ms in self._runs.items() if ms >= self._since_ms}
        names = [str(path) for path in sorted(fresh, key=lambda path: -fresh[path])]
        run = _newest(names, self._rows)
        if run != self.run:
            self.run, self._tails = run, {}
            self._rows.restart()
        if run is None:
            return
        folder = self._path / run / "metrics"
        for path in folder.rglob("*"):
            key = path.relative_to(folder).as_posix()
            if key not in self._tails and path.is_file():
                self._tails[key] = LineTail(path)

    def _read_line(self, key: str, line: bytes) -> Value | None:
        parts = line.decode(errors="replace").split()
        if not parts:
            return None
        try:
            ms, value, step = float(parts[0]), parts[1], int(parts[2]) if len(parts) > 2 else 0
        except (ValueError, IndexError):
            self._rows.warn("line", f"a line of {self._path} is not a value of {key!r}")
            return None
        return key, value, step, ms / 1000


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns


open_source = TrackedRun
