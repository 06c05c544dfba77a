"""The console for people, and the parts that several views share."""

from __future__ import annotations

import contextlib
import os
import re
from typing import IO, TYPE_CHECKING, Any, cast

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from zeusrun.plain_text import plain_text
from zeusrun.trial import TrialStatus, split_variant
from zeusrun.view.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import ConsoleOptions, RenderableType

    from zeusrun.trial import Trial

_LEAST_ROOM = 20
STATUS_STYLES = {
    TrialStatus.DISPATCHED: "cyan",
    TrialStatus.REACHED: "green",
    TrialStatus.MISSED: "yellow",
    TrialStatus.STOPPED: "yellow",
    TrialStatus.OOM: "red",
    TrialStatus.FAILED: "red",
    TrialStatus.CANCELLED: "dim",
    TrialStatus.PREEMPTED: "dim",
    TrialStatus.LOST: "red",
}


class PlainConsole(Console):
    """A console from which paths can be copied: it cuts no text, and breaks lines between words.

    Control characters in a text have no effect; see ``zeusrun.plain_text``.
    """

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 - as rich has it
        """Print like ``Console.print``, without cutting or colouring numbers."""
        super().print(
            *objects, **{"overflow": "ignore", "crop": False, "highlight": False, **options}
        )

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


class LastingStream:
    """A stream that discards its output once nobody can read it, so that a training continues."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the stream has
        """Return an attribute of the stream itself."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, or discard it."""
        with self._discarding():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what is buffered, or discard it."""
        with self._discarding():
            self._stream.flush()

    @contextlib.contextmanager
    def _discarding(self) -> Iterator[None]:
        try:
            yield
        except OSError:  # from here on, the stream writes to nowhere
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != self._stream.fileno():  # it may have been closed
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)


def lasting_console(stream: IO[str] | None) -> PlainConsole:
    """Return a console that continues without output if its terminal or pipe is closed.

    ``None`` is a stream that was closed before zeusrun started.
    """
    stream = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w") if stream is None else stream
    return PlainConsole(file=cast("IO[str]", LastingStream(stream)))


def break_lines(text: Text, width: int) -> list[Text]:
    """Break a text into lines between words; a word wider than ``width`` stays whole."""
    lines: list[Text] = []
    for line in text.split(allow_blank=True):
        line.rstrip()  # else the pattern would start at each of many spaces at the end
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
    """Rows of a label and a text, ``gap`` columns apart; ``soft_wrap`` breaks no lines.

    The further lines of a long text are indented like the first.
    """

    def __init__(self, rows: Sequence[tuple[Text, Text]], gap: int = 2) -> None:
        self._rows = rows
        self._indent = max((label.cell_len for label, _ in rows), default=0) + gap

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines."""
        room = max(_LEAST_ROOM, options.max_width - self._indent)
        for label, text in self._rows:
            head = label.copy()
            for line in [text] if options.no_wrap else break_lines(text, room):
                head.pad_right(self._indent - head.cell_len)
                yield Text.assemble(head, line, no_wrap=True, overflow="ignore")
                head = Text()


def plain_table(*names: str) -> Table:
    """Return an empty table in the common style, with these columns at first."""
    return Table(
        *names, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="dim"
    )


def warning_lines(texts: Iterable[str]) -> Labelled:
    """Return warnings, each on lines of its own."""
    return Labelled([(Text("!", style="yellow"), Text(text)) for text in texts], gap=1)


def trial_head(trial: Trial) -> RenderableType:
    """Return the choice and its reason, in two lines."""
    rate = "" if trial.learning_rate is None else f" · learning rate {trial.learning_rate:g}"
    ranks = plural(trial.world_size, "rank")
    if trial.hosts:
        ranks += f" on {plural(len(trial.hosts), 'host')}"
    adapts, sync = split_variant(trial.variant)
    variant = "" if adapts is None else f", adapted by {adapts}"
    variant += "" if sync is None else f" · sync {sync}"
    choice = f"  batch size {trial.global_batch_size}{variant}{rate} · {ranks}"
    return Group(
        Text.assemble((trial.trial, "bold"), choice),
        Labelled([(Text(), Text(f"{trial.stage.value}: {trial.why}", style="dim"))]),
    )
