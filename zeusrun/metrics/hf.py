"""transformers' ``trainer_state.json``, which a ``Trainer`` writes when it saves a checkpoint."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from zeusrun.files.private import read_file
from zeusrun.metrics.newest_file import NewestFile
from zeusrun.metrics.rows import KnownRows, Rows, RowSource

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.metrics.rows import SourceContext

_NAME = "trainer_state.json"
_MAX_BYTES = 64 << 20


class TrainerStates(RowSource):
    """Reads the log in the newest state; each state has the whole log so far."""

    def __init__(self, run: SourceContext) -> None:
        super().__init__(Rows(run, "key", epoch="epoch"))
        inside = (_NAME, f"*/{_NAME}")
        self._files = NewestFile(run, self._rows, names=_NAME, inside=inside, one=False)
        self._known: KnownRows | None = None
        self._stamp: tuple[Path, int, int] | None = None
        self._old: list[dict[str, Any]] | None = None
        if (path := self._files.newest_old()) is not None:
            with contextlib.suppress(OSError):
                self._old = _read_log(path)

    def _collect(self, *, final: bool) -> bool:
        path = self._files.find(final=final)
        if path is None:
            return False
        with contextlib.suppress(FileNotFoundError):  # deleted; the next state has its rows
            status = path.stat()
            stamp = (path, status.st_size, status.st_mtime_ns)
            if stamp != self._stamp:
                if (log := _read_log(path)) is not None:
                    self._stamp = stamp
                    self._take_log(log, status.st_mtime)
                elif final:  # before, it may be half-written
                    self._rows.warn("file", f"{path} is not a state of a transformers Trainer")
        return True

    def _take_log(self, log: list[dict[str, Any]], written_s: float) -> None:
        if self._known is None:
            self._known = KnownRows()
            # A training that continues from a checkpoint begins with the rows of that checkpoint.
            if self._old and log[: len(self._old)] == self._old:
                for row in self._old:
                    self._known.is_new(_mark(row))
        self._known.position = 0
        self._rows.restart()
        for row in log:
            if self._known.is_new(_mark(row)):
                self._rows.take(row, written_s)


def _mark(row: dict[str, Any]) -> int:
    return hash(json.dumps(row, sort_keys=True))


def _read_log(path: Path) -> list[dict[str, Any]] | None:
    """Return the rows of a state; ``None`` if it has none that can be read now."""
    try:
        state = json.loads(read_file(path, _MAX_BYTES))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    log = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(log, list):
        return None
    return [row for row in log if isinstance(row, dict)]


open_source = TrainerStates
