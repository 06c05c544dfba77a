"""The rules for ids and new trials that every history applies, and the trial that a user means."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from zeusrun.errors import UsageError, list_known
from zeusrun.history.base import NEWEST, Conflict, UnknownTrialError
from zeusrun.job_name import check_job_name, is_job_name
from zeusrun.reasons import ReasonCode
from zeusrun.trial import Trial, TrialStatus

if TYPE_CHECKING:
    from zeusrun.history.base import History

_UUID = re.compile(r"[0-9a-f]{32}")
_OFFLINE_ID = re.compile(r"(?P<job>.+)-offline-[0-9a-f]{8}")
_TRIAL_ID = re.compile(r"(?P<job>.+)-[1-9][0-9]{0,17}-[1-9][0-9]{0,17}")
OPEN = frozenset({TrialStatus.DISPATCHED, TrialStatus.LOST})
"""The statuses that a result replaces."""
# What a resumed trial must share with the preempted one.
_KEPT = (
    "trial",
    "global_batch_size",
    "learning_rate",
    "world_size",
    "run_dir",
    "time_s",
    "energy_j",
    "epochs",
    "curve",
    "uuid",
)


def job_of(trial: str) -> str | None:
    """Return the job in a trial's id ``<job>-<recurrence>-<attempt>``; else ``None``."""
    match = _TRIAL_ID.fullmatch(trial)
    return match["job"] if match and is_job_name(match["job"]) else None


def place_of(trial: Trial) -> tuple[int, int]:
    """Return what trials of a job are ordered by."""
    return trial.recurrence, trial.attempt


def check_new(trial: Trial) -> None:
    """Raise ``ValueError`` for a trial that cannot begin, whatever the history contains."""
    check_job_name(trial.job)
    check_numbers(trial, trial.job)
    if trial.status.finished:
        raise ValueError(f"trial {trial.trial} is {trial.status.value} before it began")


def check_id(trial: Trial, known: Trial | None) -> None:
    """Raise ``ValueError`` if a known trial has the same id and is not the one it resumes."""
    if known is not None and not (
        known.status is TrialStatus.PREEMPTED
        and trial.preemptions == known.preemptions + 1
        and all(getattr(trial, name) == getattr(known, name) for name in _KEPT)
    ):
        raise ValueError(f"there is a trial {trial.trial} already")


def makes_stale(trial: Trial, known: Trial | None) -> bool:
    """Whether storing a trial makes choices from before stale; ``known`` is what was stored.

    A trial that begins or goes on does: it has a number and tries a batch size. So does one that
    becomes preempted or stops being so: the next submit continues a preempted trial. So does a
    change of ``forgotten``: a choice must not rely on a forgotten trial. Other results do not: the
    next choice uses them.
    """
    return (
        known is None
        or TrialStatus.PREEMPTED in {known.status, trial.status}
        or trial.forgotten != known.forgotten
    )


def is_same(known: Trial, trial: Trial) -> bool:
    """Whether both are the same trial at different times."""
    return (known.uuid, known.job) == (trial.uuid, trial.job)


def is_superseded(known: Trial | None, trial: Trial) -> bool:
    """Whether the same trial of another history takes the place of a stored one, if any."""
    if known is None or known == trial:
        return known is None
    was_continued = known.status is TrialStatus.PREEMPTED and trial.preemptions > known.preemptions
    is_result = (
        known.status in OPEN and trial.status.finished and trial.preemptions >= known.preemptions
    )
    return was_continued or is_result


def offline_name(job: str, uuid: str) -> str:
    """Return the id of a trial that began while its shared history did not respond."""
    return f"{job}-offline-{uuid[:8]}"


def offline_job(trial: str) -> str | None:
    """Return the job in the id of a trial that began offline; else ``None``."""
    match = _OFFLINE_ID.fullmatch(trial)
    return match["job"] if match and is_job_name(match["job"]) else None


def is_uuid(name: str) -> bool:
    """Whether a name is the uuid of a trial, and not an id, which ends in two numbers."""
    return _UUID.fullmatch(name) is not None


def is_offline(trial: Trial) -> bool:
    """Whether a trial began offline and has no number yet."""
    return trial.trial == offline_name(trial.job, trial.uuid)


def has_expired(trial: Trial) -> bool:
    """Whether a trial is lost only because its machine sent no heartbeat."""
    lost = trial.status is TrialStatus.LOST
    return lost and trial.reason_code is ReasonCode.LEASE_EXPIRED


def find_expired(store: History, job: str) -> list[Trial]:
    """Return the newest trials with expired leases; their launchers may still be alive."""
    if not store.keeps_leases(job):
        return []
    return [each for each in store.trials(job, NEWEST) if has_expired(each)]


def check_numbers(trial: Trial, job: str) -> None:
    """Raise ``ValueError`` if a trial is of another job, or its uuid or id is not valid."""
    if trial.job != job:
        raise ValueError(f"trial {trial.trial} is of job {trial.job!r}, not of {job!r}")
    if not is_uuid(trial.uuid):
        raise ValueError(f"trial {trial.trial} has the uuid {trial.uuid!r}: 32 hex digits expected")
    own_id = f"{job}-{trial.recurrence}-{trial.attempt}"
    if trial.trial != own_id or job_of(own_id) != job:
        raise ValueError(
            f"trial {trial.trial!r} is number {trial.recurrence}-{trial.attempt} of {job!r}: "
            "ids are <job>-<recurrence>-<attempt>, counted from 1"
        )


def find_trial(store: History, name: str) -> Trial:
    """Return the trial with this id, the only one called ``7-1``, or the last one of a job."""
    found = store.find(name)
    if found is not None:
        return found
    jobs = store.jobs()
    if name in jobs:
        if trials := store.trials(name, 1):
            return trials[0]
        raise UsageError(f"no run of {name} is recorded; `zeusrun status` shows what runs or waits")
    if re.fullmatch(r"\d+-\d+", name):  # as the table of one job shows it
        matches = [trial for job in jobs if (trial := store.find(f"{job}-{name}")) is not None]
        if len(matches) == 1:
            return matches[0]
        raise UsageError(
            f"{name!r} is the number of {len(matches) or 'no'} runs; a run is called JOB-RUN, such "
            "as digits-7-1; `zeusrun history` lists the jobs"
        )
    job = job_of(name)
    if job in jobs:
        run = name.removeprefix(f"{job}-")
        raise UsageError(f"{job} has no run {run}; `zeusrun history {job}` lists its runs")
    asked = job or name
    known = list_known(asked, jobs, name.removeprefix(asked))
    what = "run and no job" if job is None else f"job {job}, so no run"
    raise UsageError(f"there is no {what} called {name!r}; {known}")


def encode_trial(trial: Trial) -> dict[str, Any]:
    """Return the record of a trial; ``ValueError`` if it would not read back equal."""
    try:
        record = trial.to_json()
        back = Trial.from_json(json.loads(json.dumps(record)))
    except (TypeError, ValueError) as error:
        raise ValueError(f"trial {trial.trial} cannot be stored: {error}") from error
    if back != trial:
        raise ValueError(f"trial {trial.trial} cannot be stored: it would read back differently")
    return record


def unknown_trial(trial: str) -> UnknownTrialError:
    """Return the error for an id that no trial has."""
    return UnknownTrialError(f"no trial {trial!r} in the history; `zeusrun history` lists them")


def changed(job: str) -> Conflict:
    """Return the error for a trial that was chosen from an earlier version of a history."""
    return Conflict(f"the history of {job} has changed since the trial was chosen")


def not_its_turn(job: str, turn: int) -> Conflict:
    """Return the error for a choice whose turn has not come."""
    return Conflict(f"others are ahead of turn {turn} to choose a trial of {job}")
