"""Whether other runs under the same home train on the CPU beside a run without GPUs."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

from zeusrun.launcher.queue.tickets import Tickets

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.launcher.queue.tickets import Ticket
    from zeusrun.metrics.progress import Progress

_PERIOD_S = 1.0


class Neighbours:
    """Looks about once a second; others count once two looks in a row have found the same one.

    What only one look finds may be on its way out.

    Attributes:
        shared: Whether others have been found; ``None`` for a run on GPUs, which tell it
            themselves.
    """

    def __init__(self, home: Path, *, on_cpu: bool) -> None:
        """Prepare; nothing is read yet.

        Args:
            home: Zeusrun's.
            on_cpu: Whether the run has no GPU.
        """
        self.shared: bool | None = False if on_cpu else None
        self._tickets = Tickets(home)
        self._due_t = 0.0
        self._before: frozenset[int] = frozenset()

    def look(self, progress: Progress) -> str | None:
        """Look, if it is time to and the run trains: only then its time and energy count.

        Args:
            progress: Of the run, now.

        Returns:
            A sentence for the user once others are found.
        """
        trains = progress.training_t is not None and not progress.ranks.exit_codes
        if self.shared is not False or not trains or progress.now_t < self._due_t:
            return None
        self._due_t = progress.now_t + _PERIOD_S
        found = self._on_cpu_beside()
        again = sorted(ticket.job for ticket in found if ticket.number in self._before)
        self._before = frozenset(ticket.number for ticket in found)
        if not again:
            return None
        self.shared = True
        return (
            f"{', '.join(again)} trains on this CPU at the same time, so the time and cost of "
            "this run say little; nothing is learned from them unless policy.learn_from_shared "
            "is true"
        )

    def _on_cpu_beside(self) -> list[Ticket]:
        """Return the tickets of other live submits that run on this machine's CPU."""
        try:
            present = self._tickets.present()
        except OSError:
            return []
        here = [t for t in present if t.on_cpu and t.host == platform.node()]
        return [t for t in here if t.pid != os.getpid()]
