"""What the launcher prints of the workers of a loader."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from zeusrun.launcher.supervision.agent import Agent
from zeusrun.sidecar.events import LoaderWorkers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeusrun.launcher.events import Messages
    from zeusrun.launcher.supervision.supervised import Supervised
    from zeusrun.loader.section import Loader
    from zeusrun.sidecar.events import Event

_MUCH = 0.15  # share of the time that waits


@contextlib.contextmanager
def open_agent(_loader: Loader, run: Supervised) -> Iterator[Agent]:
    """Yield the agent that shows each change of the workers."""
    yield Changes(run.messages)


class Changes(Agent):
    """Shows each change of the number of workers, and why it stays."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._now: LoaderWorkers | None = None

    def take(self, event: Event) -> None:
        """Show a change."""
        if not isinstance(event, LoaderWorkers):
            return
        if event.problem is not None:
            self._messages.warn_once(event.problem, f"loader: {event.problem}")
            return
        before, self._now = self._now, event
        most = (event.settled or "").rpartition(" ")[2]
        wait = event.wait or 0.0
        if wait > _MUCH and most == str(event.workers):
            self._messages.warn_once(
                "most",
                f"{100 * wait:.0f} % of the time waits for data with the most loader workers "
                f"of this job, {most}; where reading waits rather than computes, a larger "
                "loader.max_workers may help",
            )
        if before is None or before.t == event.t:
            return
        text = f"loader workers {_name(before)} → {_name(event)}"
        if before.wait is not None:
            share = f"{100 * before.wait:.0f} % of the time waited for data"
            text += f": with {_name(before)}, {share}"
        self._messages.note(text)


def _name(event: LoaderWorkers) -> str:
    return f"{event.workers} that stay" if event.stays else str(event.workers)
