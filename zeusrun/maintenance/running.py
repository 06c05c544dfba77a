"""What runs now: the dispatched trials, as their launchers last left word of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.rundir.live import read_live
from zeusrun.launcher.rundir.lock import lease_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zeusrun.history.base import History
    from zeusrun.launcher.rundir.live import Live
    from zeusrun.trial import Trial


@dataclass(frozen=True)
class RunningTrial:
    """A trial that has not ended.

    Attributes:
        trial: With what it has taken so far.
        alive: Whether its launcher lives; what a dead one left is recorded by the next submit.
        live: What else its launcher told last; ``None`` before it told anything.
    """

    trial: Trial
    alive: bool
    live: Live | None

    def to_json(self) -> dict[str, Any]:
        """Return the trial's JSON with what is known of it while it runs."""
        record: dict[str, Any] = {
            "alive": self.alive,
            "pid": None,
            "host": None,
            "updated_at": None,
        }
        record |= {"power_w": None, "last_metric": self.last_metric}
        told = {} if self.live is None else self.live.to_json()
        return {**self.trial.to_json(), **record, **{k: told[k] for k in record if k in told}}

    @property
    def last_metric(self) -> float | None:
        """The metric as last reported; ``None`` before that, or where it was not finite."""
        return self.trial.curve[-1].value if self.trial.curve else None


def read_running(history: History, jobs: Iterable[str]) -> list[RunningTrial]:
    """Return the trials of these jobs that have not ended, in the order they began.

    Raises:
        HistoryError: If a history cannot be read.
    """
    found = []
    for job in jobs:
        for trial in history.unfinished(job):
            paths = RunPaths(Path(trial.run_dir))
            live = read_live(paths)
            if live is not None and live.trial.trial != trial.trial:
                live = None
            known = trial if live is None else live.trial
            found.append(RunningTrial(known, lease_of(trial, paths).is_held(), live))
    return sorted(found, key=lambda running: running.trial.started_at)
