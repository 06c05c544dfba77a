"""Reads what a choice needs to know of this moment: the files of a job, its training, the time."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from zeusrun.choice.inputs import Moment
from zeusrun.choice.preempted import find_preempted
from zeusrun.clock import timestamp
from zeusrun.files.home import runs_directory
from zeusrun.jobfile.fingerprint import take_fingerprint
from zeusrun.launcher.rundir.layout import RunPaths, numbered_runs
from zeusrun.launcher.rundir.place import find_own
from zeusrun.launcher.rundir.record import has_begun
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.trial import Trial


def read_moment(
    spec: JobSpec, history: History, home: Path, host: str, trials: Sequence[Trial]
) -> Moment:
    """Return what holds now for a choice of a job's next trial; ``trials`` are its newest."""
    now, runs = take_fingerprint(spec), runs_directory(home, spec.name)
    known = max((trial.recurrence for trial in trials), default=0)
    newer = [(n, name) for n, name in numbered_runs(home, spec.name) if n is not None and n > known]
    preempted = find_preempted(_own_trials(history, home, host, trials))
    paths = None if preempted is None else find_own(history, home, preempted)
    return Moment(
        now=timestamp(),
        uuid=uuid4().hex,
        runs=runs,
        fingerprint=now.parts,
        script=now.script,
        unrecorded=tuple(
            run for run in sorted(newer, reverse=True) if has_begun(RunPaths(runs / run[1]))
        ),
        preempted=preempted,
        has_files=paths is not None and paths.job_copy.is_file(),
    )


def _own_trials(
    history: History, home: Path, host: str, trials: Sequence[Trial]
) -> Sequence[Trial]:
    """Return the trials that this machine can continue, and those that it ran."""
    if not trials or not history.is_shared(trials[0].job):
        return trials
    preempted = TrialStatus.PREEMPTED
    return [
        each
        for each in trials
        if (each.host in {None, host} and each.status is not preempted)
        or (each.status is preempted and find_own(history, home, each) is not None)
    ]
