"""Line breaks between words only, so that a path can be copied from a narrow terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions

_LEAST_ROOM = 20


def break_lines(text: Text, width: int) -> list[Text]:
    """Break a text into lines between words; a word wider than ``width`` stays whole."""
    lines: list[Text] = []
    for line in text.split(allow_blank=True):
        line.rstrip()  # the pattern would look for a word from each of the spaces at the end
        breaks, used = [], 0
        for word in re.finditer(r"\s*\S+", line.plain):
            needs = cell_len(word.group())
            if used and used + needs > width:
                start = word.end() - len(word.group().lstrip())
                breaks.append(start)
                used, needs = 0, cell_len(line.plain[start : word.end()])
            used += needs
        broken = line.divide(breaks)
        for part in broken:
            part.rstrip()
        lines += broken
    return lines


class Labelled:
    """Rows of a label and a text; further lines of a long text are indented to its start.

    Args:
        rows: Labels and texts.
        gap: Columns between label and text.
    """

    def __init__(self, rows: Sequence[tuple[Text, Text]], gap: int = 2) -> None:
        self._rows = rows
        self._indent = max((label.cell_len for label, _ in rows), default=0) + gap

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines."""
        room = max(_LEAST_ROOM, options.max_width - self._indent)
        for label, text in self._rows:
            head = label.copy()
            for line in break_lines(text, room):
                head.pad_right(self._indent - head.cell_len)
                yield Text.assemble(head, line, no_wrap=True, overflow="ignore")
                head = Text()
