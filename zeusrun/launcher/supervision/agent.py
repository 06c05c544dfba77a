"""An agent looks after a running trial beside its supervisor."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zeusrun.metrics.progress import Progress
    from zeusrun.sidecar.events import Event


class Agent:
    """Handles one concern of a run. No method may wait.

    The supervisor calls ``take`` with each event of the ranks, then ``advance``, and at the end
    ``conclude`` in its place.
    """

    def take(self, event: Event) -> None:
        """Process an event of a rank."""

    def advance(self, progress: Progress) -> None:
        """Act on how far the training is, about ten times a second."""

    def conclude(self, progress: Progress) -> None:
        """Act a last time: all ranks have ended."""
        self.advance(progress)
