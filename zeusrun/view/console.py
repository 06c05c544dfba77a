"""Where people read: a console that prints text of others, and does not obey it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment

from zeusrun.plain_text import plain_text
from zeusrun.view.lines import WideConsole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType


class PlainConsole(WideConsole):
    """A console on which colours come from styles alone; see ``zeusrun.plain_text``."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render anything, the cells of a table one by one, so that its columns stay in line."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(plain_text(segment.text), segment.style)
