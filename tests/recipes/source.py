"""A metric source: reads a file with a line such as ``accuracy=0.5`` for each epoch."""

from __future__ import annotations

from zeusrun.files.tail import LineTail
from zeusrun.metrics.rows import Rows, RowSource


class Pairs(RowSource):
    def __init__(self, run):
        super().__init__(Rows(run, "name"))
        self._tail = LineTail(run.run_dir / "pairs.txt")

    def _collect(self, *, final):
        for line in self._tail.read_lines(final=final):
            name, _, value = line.decode().partition("=")
            self._rows.take({name: value}, self._tail.modified_s or 0.0)
        return True
