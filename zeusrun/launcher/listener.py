"""Whoever watches a submit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.metrics.progress import Progress
    from zeusrun.trial import Trial


class Listener(Protocol):
    """Whoever watches a submit; all calls come from the main thread."""

    def note(self, text: str) -> None:
        """Take a sentence worth reading."""

    def warn(self, text: str) -> None:
        """Take a sentence that a user should act on."""

    def dispatched(self, trial: Trial, cost_bound_j: float | None) -> None:
        """Take a trial that is about to start."""

    def bounded(self, cost_bound_j: float | None) -> None:
        """Take another bound of the running trial."""

    def output(self, rank: int, lines: Sequence[str]) -> None:
        """Take what a rank printed."""

    def advanced(self, progress: Progress) -> None:
        """Take the state of the running trial, about ten times a second."""

    def finished(self, trial: Trial, *, looked: bool) -> None:
        """Take a recorded trial; ``looked``: it was ended because of what a look at it told."""
