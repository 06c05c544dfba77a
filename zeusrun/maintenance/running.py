"""What runs now: the dispatched trials with the last values that their launchers wrote."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from zeusrun.errors import HistoryError
from zeusrun.files.home import runs_directory
from zeusrun.history.rules import find_expired
from zeusrun.launcher.queue.tickets import find_waiting
from zeusrun.launcher.rundir.layout import Live, read_live
from zeusrun.launcher.rundir.ownership import find_own, is_abandoned
from zeusrun.trial import Outcome, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.trial import Trial


_MAX_W = 1e9  # more comes from a damaged record


def state_of(trial: Trial, found: Live | None) -> Live:
    """Return the state of a running trial from what its launcher wrote or sent, if it is of it.

    Its name stays as the history has it: the trial may have got a number meanwhile.
    """
    if found is None or not found.is_of(trial):
        return Live(trial, None, trial.host, None)
    progress = {each.name: getattr(found.trial, each.name) for each in fields(Outcome)}
    progress |= {"status": TrialStatus.DISPATCHED, "finished_at": None}
    progress |= {"reason": None, "reason_code": None}
    power_w = found.power_w
    if power_w is not None and not 0 <= power_w < _MAX_W:
        power_w = None
    return replace(found, trial=replace(trial, **progress), power_w=power_w)


def read_running(history: History, home: Path, jobs: Iterable[str]) -> list[Live]:
    """Return the trials of these jobs that have not ended, in the order of their starts.

    The result includes runs of this machine that continue although their server gets no heartbeat.
    """
    found = []
    for job in jobs:
        trials = history.unfinished(job)
        waiting = find_waiting(trials)
        found += [_read(history, home, trial, waiting) for trial in trials]
        if runs_directory(home, job).is_dir():
            expired = [each for each in find_expired(history, job) if find_own(home, each)]
            taken_for_lost = [_read(history, home, each) for each in expired]
            found += [live for live in taken_for_lost if live.alive]
    return sorted(found, key=lambda live: live.trial.started_at)


def _read(history: History, home: Path, trial: Trial, waiting: Collection[str | None] = ()) -> Live:
    """Return the state of a trial: from its files, or from the server that other machines use."""
    found, paths = None, find_own(home, trial)
    if paths is not None:
        found = read_live(paths)
    else:
        with suppress(HistoryError):
            found = Live.from_json(history.live(trial.trial) or {})
    alive = not is_abandoned(history, trial, paths) or trial.allocation in waiting
    return replace(state_of(trial, found), alive=alive)
