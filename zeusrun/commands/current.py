"""The verbs about what goes on now: ``status`` and ``cancel``.

Only what prints tables imports them: rich takes 40 ms, which ``--json`` saves.
"""

from __future__ import annotations

import contextlib
import platform
import time
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from zeusrun.clock import timestamp
from zeusrun.commands import options
from zeusrun.errors import HistoryError, UsageError, ZeusrunError
from zeusrun.history.base import HEARTBEAT_S, UnavailableError
from zeusrun.history.rules import has_expired
from zeusrun.launcher.queue.tickets import find_waiting, read_waiting
from zeusrun.launcher.rundir.layout import ask_to_cancel
from zeusrun.launcher.rundir.ownership import files_of, find_own, lease_of
from zeusrun.maintenance.running import read_running
from zeusrun.plain_text import plain_text
from zeusrun.run_on.registry import (
    describe_job,
    end_job,
    find_ended,
    interrupt_job,
    is_remote,
    read_jobs,
)
from zeusrun.trial import TrialStatus
from zeusrun.view.export import print_json

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.schedule.store import Schedule
    from zeusrun.trial import Trial

_POLL_S = 0.2
_REMOTE_POLL_S = 2.0
_STUCK_S = 60.0  # beyond the grace period; after that the launcher is suspended or stalled


def status(job: options.AnyJob = None, *, as_json: options.AsJson = False) -> None:
    """Show what runs, what waits, and what starts later."""
    home, store = options.open_home(job)
    job = None if job is None else options.known_job(store, options.job_name(job))
    names = store.jobs() if job is None else [job]
    by_job, damage = options.read_each(names, lambda name: read_running(store, home, [name]))
    found = [running for of_job in by_job.values() for running in of_job]
    waiting = read_waiting(home, job, (running.trial for running in found))
    deferred = _deferred(home, job)
    if as_json:
        queue = [{"trial": None, **ticket.to_json()} for ticket in waiting]
        queue += [
            {"trial": None, "job": each.job, "state": "deferred", **each.planned_json()}
            for each in deferred
        ]
        print_json([*(running.to_json() for running in found), *queue])
    elif found or waiting or deferred:
        from zeusrun.view.tables import status_table  # noqa: PLC0415 - see the top

        starts = {each.job: each.describe_start() or "" for each in deferred}
        asked = [ticket.allocation for ticket in waiting if ticket.allocation]
        jobs = read_jobs(asked)
        queued = {name: describe_job(name, jobs.get(name)) for name in asked}
        shown = options.console()
        host = platform.node()
        table = status_table(found, waiting, starts, queued, host=host, width=shown.width)
        shown.print(table)
    elif damage is None:
        typer.echo("nothing runs now; 'zeusrun history' shows what ran")
    if damage is not None:
        if job is not None:
            raise damage
        missing, advice = ", ".join(name for name in names if name not in by_job), ""
        if isinstance(damage, UnavailableError):
            advice = ". Start that server, or give the job another 'history' and submit it"
        raise HistoryError(f"{damage}; what runs of {missing} is not shown{advice}") from damage


def _deferred(home: Path, job: str | None) -> list[Schedule]:
    """Return the schedules that have deferred a start, of one job or of all."""
    if not (home / "schedules").is_dir():
        return []
    from zeusrun.schedule.store import Schedules  # noqa: PLC0415 - few have a schedule

    schedules, found = Schedules(home), []
    for name in schedules.jobs() if job is None else {job}.intersection(schedules.jobs()):
        with contextlib.suppress(ZeusrunError):  # `schedule list` says what is wrong with it
            found.append(schedules.read(name))
    return [schedule for schedule in found if schedule.describe_start() is not None]


def cancel(
    name: options.TrialName,
    *,
    now: Annotated[bool, Option("--now", help="Stop at once, without the grace period.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Stop a run, or give up a preempted one.

    The effect is that of Ctrl-C in the terminal of its submit. The command waits for the end.
    """
    from zeusrun.maintenance.recover import (  # noqa: PLC0415 - psutil takes 20 ms
        cancel_preempted,
        recover_lost,
    )

    home, store = options.open_home(name)
    name = options.job_name(name)
    trial = _find_going(home, store, name)
    if isinstance(trial, str):
        end_job(trial, _STUCK_S)
        options.answer({"cancelled": trial}, f"{trial} is cancelled", as_json=as_json)
        return
    paths = find_own(home, trial)
    here = paths is not None or trial.status.final or is_remote(trial.allocation)
    elsewhere = not here and store.keeps_leases(trial.job)
    if elsewhere:
        _cancel_elsewhere(store, home, trial, now=now, as_json=as_json)
    going_on = not trial.status.finished or has_expired(trial)
    running = going_on and paths is not None and lease_of(trial, paths).is_held()
    if paths is not None and running:
        _stop(trial, paths, now=now, as_json=as_json)
    elif _give_up(trial):
        running = True
    recover_lost(store, trial.job, timestamp(), home)
    ended = options.find_trial(trial.trial, store)
    was_preempted = ended.status is TrialStatus.PREEMPTED
    if was_preempted:
        _give_up(ended)  # it may be about to queue itself again
        cancel_preempted(store, ended, home, timestamp())
        ended = options.find_trial(trial.trial, store)
    reason, status = plain_text(ended.reason or ""), ended.status.value
    if not ended.status.finished:
        shown = f"{ended.trial} has not recorded its end yet; if it does not, it is LOST"
    elif running or was_preempted or elsewhere:
        shown = f"{ended.trial} is {status}: {reason}"
    else:
        shown = f"{ended.trial} had already ended: {reason or status}"
    options.answer(ended.to_json(), shown, as_json=as_json)


def _find_going(home: Path, store: History, name: str) -> Trial | str:
    """Return the run that is going on of a job, else the one that a name means.

    If that has only been queued in a scheduler, return the name of its job there.
    """
    going = store.unfinished(name) if name in store.jobs() else []
    tickets = read_waiting(home)
    queued = [t.allocation for t in tickets if t.allocation and name in {t.job, t.allocation}]
    if is_remote(name) and not queued and not find_ended([name]):  # of another machine
        queued = [name]
    names = {*queued, *(trial.allocation or trial.trial for trial in going)}
    if len(names) > 1:
        several = ", ".join(sorted(names))
        raise UsageError(f"several runs of {name} are going on: {several}; name the one to stop")
    trial = options.find_allocated(queued[0], store) if queued else None
    if queued and (trial is None or trial.status.final):
        return queued[0]
    return trial or (going[0] if going else options.find_trial(name, store))


def _give_up(trial: Trial) -> bool:
    """Cancel the job of a scheduler that would run a trial again; return whether there was one."""
    if trial.allocation is None or trial.allocation not in find_waiting([trial]):
        return False
    end_job(trial.allocation, _STUCK_S)
    return True


def _stop(trial: Trial, paths: RunPaths, *, now: bool, as_json: bool) -> None:
    """Ask the launcher of a trial to stop it, and wait for the end."""
    grace_s = _grace_s(paths)
    try:
        ask_to_cancel(paths, at_once=now)
    except OSError as error:
        raise HistoryError(
            f"the request to stop {trial.trial} could not be written: {error.filename}: "
            f"{error.strerror}; send SIGINT to its zeusrun"
        ) from error
    if not as_json:
        within = "" if now or grace_s is None else f", within {grace_s:g} s"
        typer.echo(f"{trial.trial} is asked to stop{within}")
    if trial.allocation is not None:
        interrupt_job(trial.allocation)  # a shared file system may show the request late
    deadline_t = time.monotonic() + (grace_s or 0) + _STUCK_S
    while lease_of(trial, paths).is_held():
        if time.monotonic() > deadline_t:
            if trial.allocation is not None:
                end_job(trial.allocation, _STUCK_S)
                return  # a lock of a dead node may last longer
            raise HistoryError(
                f"{trial.trial} was asked to stop, but its zeusrun does not react; it may be "
                "suspended: kill it, and the next submit records the run as LOST"
            )
        time.sleep(_POLL_S)


def _cancel_elsewhere(
    store: History, home: Path, trial: Trial, *, now: bool, as_json: bool
) -> None:
    """Ask the launcher of a trial on another machine to cancel it, and wait for the end."""
    if now:
        raise UsageError(
            f"--now works on the machine of the run alone ({trial.host}); without it, "
            f"its launcher reads the request within {HEARTBEAT_S:g} s"
        )
    if not store.ask_to_cancel(trial.trial):
        files_of(home, trial)  # raises, because the files are elsewhere
    if not as_json:
        typer.echo(
            f"{trial.host or 'its machine'} is asked to cancel {trial.trial}: its launcher reads "
            f"this within {HEARTBEAT_S:g} s, and then ends the training"
        )
    # It ends within its grace period; or it is LOST, because its launcher has died.
    goes_on = True
    while goes_on:
        time.sleep(_REMOTE_POLL_S)
        with contextlib.suppress(UnavailableError):  # the request stands
            goes_on = any(each.trial == trial.trial for each in store.unfinished(trial.job))


def _grace_s(paths: RunPaths) -> float | None:
    """Return the grace period of a running job in seconds; ``None`` if its file cannot be read."""
    try:
        return options.load_job(paths.job_copy).launch.grace_period_s
    except ZeusrunError:  # its script has been moved, for example
        return None
