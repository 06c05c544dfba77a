"""What runs now: the dispatched trials with the last values that their launchers wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.rundir.lock import lease_of
from zeusrun.launcher.rundir.record import read_live

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zeusrun.history.base import History
    from zeusrun.launcher.rundir.record import Live
    from zeusrun.trial import Trial


@dataclass(frozen=True)
class RunningTrial:
    """A trial that has not ended.

    Attributes:
        trial: With its time, energy and epochs so far.
        alive: Whether its launcher is alive; the next submit records a trial whose launcher died.
        live: The last values of its launcher; ``None`` before it wrote any.
    """

    trial: Trial
    alive: bool
    live: Live | None

    def to_json(self) -> dict[str, Any]:
        """Return the trial's JSON, and what is known only while it runs."""
        live = {} if self.live is None else self.live.to_json()
        known = {name: live.get(name) for name in ("pid", "host", "updated_at", "power_w")}
        own = {"alive": self.alive, **known, "last_metric": self.last_metric}
        return {**self.trial.to_json(), **own}

    @property
    def last_metric(self) -> float | None:
        """The metric as last reported; ``None`` before that, or if it was not finite."""
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
