"""A console that prints untrusted text in full and neutralises its control characters."""

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

    It never cuts a text and breaks lines between words only. Tables take its whole width.
    """

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 - as rich has it
        """Print like ``Console.print``, without cutting."""
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
        """Render anything. Table cells are cleaned one by one, so that columns stay aligned."""
        if (
            isinstance(renderable, Text)
            and options is not None
            and options.overflow == "ignore"
            and not (options.no_wrap or renderable.no_wrap)
        ):  # with "ignore", rich would not break lines at all
            lines = break_lines(renderable, options.max_width)
            renderable = Text("\n", end=renderable.end).join(lines)
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(plain_text(segment.text), segment.style)
