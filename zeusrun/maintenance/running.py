"""What runs now: the dispatched trials with the last values that their launchers wrote."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.errors import HistoryError
from zeusrun.files.home import runs_directory
from zeusrun.history.base import NEWEST
from zeusrun.history.registry import shared_of
from zeusrun.history.rules import has_expired
from zeusrun.launcher.rundir.lock import lease_of
from zeusrun.launcher.rundir.place import files_of, find_own
from zeusrun.launcher.rundir.record import Live, read_live

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.trial import Trial


def read_running(history: History, home: Path, jobs: Iterable[str]) -> list[Live]:
    """Return the trials of these jobs that have not ended, in the order they began."""
    found = []
    for job in jobs:
        found += [_read(history, home, trial) for trial in history.unfinished(job)]
        found += _read_taken_for_lost(history, home, job)
    return sorted(found, key=lambda live: live.trial.started_at)


def _read_taken_for_lost(history: History, home: Path, job: str) -> list[Live]:
    """Return the runs of this machine that go on although their server got no heartbeat."""
    if shared_of(history, job) is None or not runs_directory(home, job).is_dir():
        return []
    lost = [each for each in history.trials(job, NEWEST) if has_expired(each)]
    found = [_read(history, home, each) for each in lost if find_own(history, home, each)]
    return [live for live in found if live.alive]


def _read(history: History, home: Path, trial: Trial) -> Live:
    """Return the state of a trial: from its files, or from the server that other machines use."""
    shared = shared_of(history, trial.job)
    bare = Live(trial, None, trial.host, None)
    if shared is not None and find_own(history, home, trial) is None:
        record = None
        with suppress(HistoryError):
            record = shared.live(trial.trial)
        live = None if record is None else Live.from_json(record)
        return live if live is not None and live.is_of(trial) else bare  # its lease is held
    paths = files_of(history, home, trial)
    found = read_live(paths)
    live = found if found is not None and found.is_of(trial) else bare
    if live.trial.trial != trial.trial:  # it has a number meanwhile
        numbers = {name: getattr(trial, name) for name in ("trial", "recurrence", "attempt")}
        live = replace(live, trial=replace(live.trial, **numbers))
    return replace(live, alive=lease_of(trial, paths).is_held())
