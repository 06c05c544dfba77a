"""Tables: ``metrics.csv`` of Lightning, ``summary.csv`` of timm, ``results.csv`` of Ultralytics."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from zeusrun.metrics.lines import LineFile
from zeusrun.metrics.rows import number_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.metrics.rows import Run


class _Table:
    """Reads lines: the first is the header, which may come again."""

    def __init__(self) -> None:
        self._header: list[str] = []
        self._delimiter = ","

    def __call__(self, line: bytes) -> tuple[int, Mapping[str, str]] | None:
        text = line.decode("utf-8-sig", errors="replace")
        if not self._header:
            self._delimiter = max(",;\t", key=text.count)
        try:
            cells = next(csv.reader([text], delimiter=self._delimiter))
        except csv.Error as error:
            raise ValueError(f"is no row of a table: {error}") from error
        cells = [cell.strip() for cell in cells]
        if not self._header or self._is_header(cells):
            self._header = cells
            return None
        if len(cells) != len(self._header):
            raise ValueError(f"has {len(cells)} cells, but the header has {len(self._header)}")
        row = {name: cell for name, cell in zip(self._header, cells, strict=True) if cell}
        return hash(frozenset(row.items())), row

    def _is_header(self, cells: list[str]) -> bool:
        names = set(self._header).intersection(filter(None, cells))
        return bool(names) and all(number_of(cell) is None for cell in cells)


def open_source(run: Run) -> LineFile:
    """Open the table that ``metrics.path`` names; blank cells are no values."""
    return LineFile(run, "column", _Table)
