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
from zeusrun.commands.now import read_now
from zeusrun.errors import HistoryError, UsageError, ZeusrunError
from zeusrun.history.base import HEARTBEAT_S, UnavailableError
from zeusrun.history.rules import has_expired
from zeusrun.launcher.queue.tickets import find_waiting, read_waiting
from zeusrun.launcher.rundir.layout import ask_to_cancel
from zeusrun.launcher.rundir.ownership import files_of, find_own, lease_of
from zeusrun.plain_text import plain_text
from zeusrun.run_on.registry import (
    end_job,
    find_ended,
    interrupt_job,
    is_remote,
)
from zeusrun.trial import TrialStatus
from zeusrun.view.export import print_json

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.trial import Trial

_POLL_S = 0.2
_REMOTE_POLL_S = 2.0
_STUCK_S = 60.0  # beyond the grace period; after that the launcher is suspended or stalled


def status(
    job: options.AnyJob = None,
    *,
    watch: Annotated[
        bool, Option("--watch", help="Show it on the whole screen, with GPUs and schedules.")
    ] = False,
    every: Annotated[
        float, Option(metavar="SECONDS", min=0.1, help="With --watch: how often it is read.")
    ] = 1.0,
    as_json: options.AsJson = False,
) -> None:
    """Show what runs, what waits, and what starts later.

    --watch reads it again every second; q or Ctrl-C ends it.
    """
    if watch:
        if as_json:
            raise UsageError("--watch and --json exclude each other; leave out one of them")
        from zeusrun.commands.watch import watch_status  # noqa: PLC0415 - see the top

        watch_status(job, every)
        return
    home, store = options.open_home(job)
    now = read_now(home, store, job)
    if as_json:
        queue = [{"trial": None, **ticket.to_json()} for ticket in now.waiting]
        queue += [
            {"trial": None, "job": each.job, "state": "deferred", **each.planned_json()}
            for each in now.schedules
            if each.job in now.deferred
        ]
        print_json([*(running.to_json() for running in now.found), *queue])
    elif now.found or now.waiting or now.deferred:
        from zeusrun.view.tables import status_table  # noqa: PLC0415 - see the top

        shown, host, queued = options.console(), platform.node(), now.describe_queue()
        rows = now.found, now.waiting, now.deferred, queued
        shown.print(status_table(*rows, host=host, width=shown.width))
    elif now.problem is None:
        typer.echo("nothing runs now; 'zeusrun history' shows what ran")
    if now.problem is not None:
        raise now.problem


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
