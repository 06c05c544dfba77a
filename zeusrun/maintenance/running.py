"""What runs now: the dispatched trials with the last values that their launchers wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.rundir.lock import lease_of
from zeusrun.launcher.rundir.record import Live, read_live

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zeusrun.history.base import History


def read_running(history: History, jobs: Iterable[str]) -> list[Live]:
    """Return the trials of these jobs that have not ended, in the order they began."""
    found = []
    for job in jobs:
        for trial in history.unfinished(job):
            paths = RunPaths(Path(trial.run_dir))
            live = read_live(paths)
            if live is None or live.trial.trial != trial.trial:
                live = Live(trial, None, trial.host, None)
            found.append(replace(live, alive=lease_of(trial, paths).is_held()))
    return sorted(found, key=lambda live: live.trial.started_at)
