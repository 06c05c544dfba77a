"""Where people read: a console that prints text of others whole, and does not obey it."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from zeusrun.plain_text import plain_text
from zeusrun.view.lines import break_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType


class PlainConsole(Console):
    """A console on which colours come from styles alone; see ``zeusrun.plain_text``.

    It neither cuts nor breaks the words of a text; tables are as wide as it is.
    """

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 - as rich has it
        """Print as ``Console.print`` does."""
        super().print(*objects, **{"overflow": "ignore", "crop": False, **options})

    def on_broken_pipe(self) -> None:
        """Silence the stream that this prints to; rich would silence standard output, always.

        Raises:
            BrokenPipeError: Always; rich would exit.
        """
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render anything, the cells of a table one by one, so that its columns stay in line."""
        if (
            isinstance(renderable, Text)
            and options is not None
            and options.overflow == "ignore"
            and not (options.no_wrap or renderable.no_wrap)
        ):  # rich would break no line that must not be cut
            lines = break_lines(renderable, options.max_width)
            renderable = Text("\n", end=renderable.end).join(lines)
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(plain_text(segment.text), segment.style)
