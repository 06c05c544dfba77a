"""The screen of ``status --watch``: as many lines as the terminal has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.segment import Segment
from rich.text import Text

from zeusrun.view import columns, units
from zeusrun.view.columns import Column, column_table
from zeusrun.view.tables import warning_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType

_FACTS = (
    *("nvml_index", "model", "power_w", "power_limit_w", "utilization", "temperature_c"),
    *("throttle_reasons", "held_by"),
)


class Screen:
    """What is shown now. It fits itself to the terminal whenever it is drawn."""

    def __init__(
        self,
        title: str,
        problems: Sequence[str],
        parts: Callable[[int], Sequence[RenderableType]],
    ) -> None:
        """Prepare; ``problems`` take a line each, and ``parts`` returns what fits a width."""
        self._head = [Text(title, "bold", no_wrap=True), *map(warning_line, problems)]
        self._parts = parts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Yield the lines for which there is room, and how many there are besides."""
        height = options.height or console.height
        unlimited = options.update(height=None)
        lines = console.render_lines(Group(*self._head), unlimited, pad=False)
        for part in self._parts(options.max_width):
            of_part = console.render_lines(part, unlimited, pad=False)
            if any(segment.text.strip() for line in of_part for segment in line):
                lines += [[], *of_part]
        if len(lines) > height:
            hidden = sum(any(segment.text.strip() for segment in x) for x in lines[height - 1 :])
            lines[height - 1 :] = [[Segment(f"… {units.plural(hidden, 'more line')}")]]
        for number, line in enumerate(lines):
            yield from [Segment.line()] if number else []
            yield from line


def gpus_table(gpus: Sequence[dict[str, Any]], width: int) -> RenderableType:
    """Return what the GPUs of this machine do, as ``read_gpu`` returns it."""
    rows = [SimpleNamespace(**{name: gpu.get(name) for name in _FACTS}) for gpu in gpus]
    holder = Column("limit held by", lambda gpu: gpu.held_by or units.UNKNOWN, True, True, leaves=1)
    errors = [warning_line(gpu["error"]) for gpu in gpus if "error" in gpu]
    table = column_table([*columns.GPU, holder], rows, width - 1)
    return Group(*([table] if rows else []), *errors)
