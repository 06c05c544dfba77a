"""Whether other runs train on the same CPU as a run without GPUs."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

from zeusrun.errors import HistoryError
from zeusrun.launcher.queue.tickets import Tickets

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.metrics.progress import Progress

_PERIOD_S = 1.0


class Neighbours:
    """Checks once a second. A run counts once two checks in a row find it: one may be ending."""

    def __init__(self, home: Path, *, on_cpu: bool) -> None:
        self.shared: bool | None = False if on_cpu else None  # on GPUs the meter sees it
        self._tickets = Tickets(home)
        self._due_t = 0.0
        self._before: frozenset[int] = frozenset()

    def check(self, progress: Progress) -> str | None:
        """Check if it is time and the run is training; return a warning once others are found."""
        trains = progress.training_t is not None and not progress.ranks.exit_codes
        if self.shared is not False or not trains or progress.now_t < self._due_t:
            return None
        self._due_t = progress.now_t + _PERIOD_S
        try:
            present = self._tickets.present()
        except (OSError, HistoryError):  # a newer zeusrun may have come meanwhile
            present = []
        here = [t for t in present if t.on_cpu and t.host == platform.node()]
        found = [t for t in here if t.pid != os.getpid()]
        again = sorted(ticket.job for ticket in found if ticket.number in self._before)
        self._before = frozenset(ticket.number for ticket in found)
        if not again:
            return None
        self.shared = True
        return (
            f"{', '.join(again)} trains on this CPU at the same time, so the time and cost of "
            "this run are unreliable; the policy ignores them unless policy.learn_from_shared is "
            "true"
        )
