"""Agents, which handle parts of the supervision of a running trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zeusrun.metrics.progress import Progress
    from zeusrun.sidecar.events import Event


class Agent:
    """Handles one concern of a run. No method may block.

    The supervisor calls ``take`` with each event of the ranks, then ``advance``. After the ranks
    have ended, it calls ``conclude`` instead of ``advance``.
    """

    def take(self, event: Event) -> None:
        """Process an event of a rank."""

    def advance(self, progress: Progress) -> None:
        """Act on the progress of the training. Called about ten times a second."""

    def conclude(self, progress: Progress) -> None:
        """Act a last time, after all ranks have ended."""
        self.advance(progress)
