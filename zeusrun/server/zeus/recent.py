"""Keeps the newest trials of jobs in memory: to decode 1,000 of them takes 100 ms."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

from zeusrun.history.base import NEWEST, Snapshot

if TYPE_CHECKING:
    from zeusrun.history.base import Shared
    from zeusrun.trial import Trial

_MOST_JOBS = 64


class RecentTrials:
    """Snapshots of jobs, of which only what changed is read again; safe for threads."""

    def __init__(self, history: Shared) -> None:
        self._history = history
        self._known: OrderedDict[str, tuple[str, dict[int, Trial]]] = OrderedDict()
        self._lock = Lock()

    def snapshot(self, job: str) -> Snapshot:
        """Return the newest trials of a job, oldest first, and the version of its history."""
        with self._lock:
            version, trials = self._known.get(job, (None, {}))
        changes = self._history.changes(job, version, NEWEST)
        changed = dict(zip(changes.numbers, changes.trials, strict=True))
        merged = changed if changes.whole else {**trials, **changed}
        newest = {number: merged[number] for number in sorted(merged)[-NEWEST:]}
        with self._lock:
            self._known[job] = changes.version, newest
            self._known.move_to_end(job)
            while len(self._known) > _MOST_JOBS:
                self._known.popitem(last=False)
        return Snapshot(tuple(newest.values()), changes.version)
