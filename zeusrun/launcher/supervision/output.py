"""Shows the output of the ranks, and notes about their events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.launcher.events import Printed
from zeusrun.launcher.rundir.logs import log_tails, read_text_lines
from zeusrun.launcher.supervision.agent import Agent
from zeusrun.sidecar.events import Applied, Started, Synced

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zeusrun.launcher.events import Messages
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.metrics.progress import Progress
    from zeusrun.sidecar.events import Event

_MAX_BACKLOG_BYTES = 256 << 10  # about 5,000 lines, a third of a second to print


class Output(Agent):
    """Follows the logs of the ranks.

    Attributes:
        tails: The reader of each log, by rank.
    """

    def __init__(self, paths: RunPaths, ranks: Iterable[int], messages: Messages) -> None:
        """Follow the logs of these ranks from the start; ranks that join later are added."""
        self._paths, self._messages = paths, messages
        self.tails = log_tails(paths, ranks)

    def take(self, event: Event) -> None:
        """Follow the log of a new rank, and show the note about an event."""
        if isinstance(event, Started) and event.rank not in self.tails:
            self.tails |= log_tails(self._paths, [event.rank])
        if (note := describe(event)) is not None:
            self._messages.note(note)

    def advance(self, progress: Progress) -> None:
        """Show new lines, but not so many that they delay the supervision."""
        del progress
        self._show(final=False)

    def conclude(self, progress: Progress) -> None:
        """Show the remaining lines, even a last one without a line break."""
        del progress
        self._show(final=True)

    def _show(self, *, final: bool) -> None:
        messages = self._messages
        for rank, tail in self.tails.items():
            with messages.reading(str(tail.path)):
                if skipped := tail.skip_backlog(_MAX_BACKLOG_BYTES):
                    what = f"{skipped / 1e6:.1f} MB of rank {rank} are not shown"
                    messages.note(f"{what}; they are in {tail.path}")
                while lines := read_text_lines(tail, final=final):
                    messages.emit(Printed(rank, tuple(lines)))
                    if not final:
                        break


def describe(event: Event) -> str | None:
    """Return the note about an event for the user; ``None`` if the event has no note."""
    if isinstance(event, Synced) and event.problem is None:
        return f"sync {event.how}: {event.why}"
    return event.describe() if isinstance(event, Applied) else None
