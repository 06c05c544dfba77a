"""The lines that a training prints, read with regular expressions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zeusrun.files.tail import LineTail
from zeusrun.jobfile.patterns import READY
from zeusrun.metrics.rows import Rows, RowSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.metrics.rows import Run

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_MAX_CHUNKS = 4  # 1 MB at a time, so that supervision never waits long
_MAX_LINE = 4096  # characters; a metric stands at the start of a line
_ON_LAST_RANK = "megatron"  # it prints on the last rank


class PrintedLines(RowSource):
    """Reads the log of rank 0, and of the last rank what Megatron prints there.

    Without ``metrics.pattern``, all ready patterns are looked for.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(Rows(run, "group", epoch="epoch"))
        self._quiet = run.section.source == "auto"
        self._matched = False
        patterns: dict[int, list[re.Pattern[str]]] = {}
        for name in run.section.pattern or READY:
            rank = run.world_size - 1 if name == _ON_LAST_RANK else 0
            patterns.setdefault(rank, []).extend(map(re.compile, READY.get(name, (name,))))
        self._logs = [(LineTail(run.log(rank)), each) for rank, each in patterns.items()]
        for tail, _ in self._logs:
            tail.skip_backlog(1)  # of a run that is continued; the next line counts

    @property
    def warnings(self) -> Sequence[str]:
        """What could not be read, each once; of lines that nobody has named, nothing."""
        return () if self._quiet else self._rows.warnings

    def _collect(self, *, final: bool) -> bool:
        for tail, patterns in self._logs:
            chunks = 0
            while (chunks < _MAX_CHUNKS or final) and (lines := tail.read_lines(final=final)):
                chunks += 1
                for line in lines:
                    self._take(line, patterns, tail.modified_s or 0.0)
        if final and not self._matched:
            self._rows.warn("lines", "no line of rank 0 has matched metrics.pattern")
        return True  # the log is always there

    def _take(self, line: bytes, patterns: list[re.Pattern[str]], written_s: float) -> None:
        text = line.decode(errors="replace")
        if "\x1b" in text:
            text = _COLOUR.sub("", text)
        for part in text.split("\r"):
            found = [match for pattern in patterns if (match := pattern.search(part[:_MAX_LINE]))]
            row = {name: raw for match in found for name, raw in match.groupdict().items() if raw}
            if row:
                self._matched = True
                self._rows.take(row, written_s)


open_source = PrintedLines
