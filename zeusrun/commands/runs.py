"""The verbs that look after runs: ``status``, ``cancel``, ``repair``, ``gc`` and ``logs``."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from zeusrun.clock import read_clock, timestamp
from zeusrun.errors import DeviceError, HistoryError, UsageError, ZeusrunError
from zeusrun.plain_text import plain_log_line, plain_text
from zeusrun.view.export import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from zeusrun.history.base import History
    from zeusrun.history.tinydb.store import TinyDBHistory
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.maintenance.retention import Bounds
    from zeusrun.trial import Trial

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
TrialName = Annotated[
    str, typer.Argument(metavar="TRIAL", help="A trial, such as digits-7-1; a job means its last.")
]
_POLL_S = 0.2
_STUCK_S = 60.0  # beyond the grace: then its launcher is stopped, or hangs


def status(
    job: Annotated[
        Optional[str],  # noqa: UP045 - typer evaluates it, and Python 3.10 must, too
        typer.Argument(metavar="JOB", help="Only this job's trials."),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show what runs now, and what waits for its turn."""
    from zeusrun.launcher.queue.tickets import read_waiting  # noqa: PLC0415
    from zeusrun.maintenance.running import read_running  # noqa: PLC0415
    from zeusrun.view.status import status_table  # noqa: PLC0415

    home, store = open_home()
    damage: HistoryError | None = None
    found = []
    for name in store.jobs() if job is None else [known_job(store, job)]:
        try:
            found += read_running(store, [name])
        except HistoryError as error:  # the healthy ones are shown all the same
            damage = damage or error
    waiting = read_waiting(home, job)
    if as_json:
        queue = [{"trial": None, **ticket.to_json()} for ticket in waiting]
        print_json([*(running.to_json() for running in found), *queue])
    elif found or waiting:
        console().print(status_table(found, waiting))
    elif damage is None:
        typer.echo("nothing runs now; 'zeusrun history' shows what ran")
    if damage is not None:
        raise damage


def cancel(
    name: TrialName,
    *,
    now: Annotated[bool, typer.Option("--now", help="At once, without the grace period.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop a running trial, or keep a preempted one from going on.

    It ends as it does after Ctrl-C, wherever its zeusrun runs; the command waits for that.
    """
    from zeusrun.launcher.recover import recover_lost  # noqa: PLC0415
    from zeusrun.launcher.rundir.cancel import ask_to_cancel, cancel_preempted  # noqa: PLC0415
    from zeusrun.launcher.rundir.layout import find_run  # noqa: PLC0415
    from zeusrun.launcher.rundir.lock import launcher_lives  # noqa: PLC0415
    from zeusrun.trial import TrialStatus  # noqa: PLC0415

    home, store = open_home()
    going = store.unfinished(name) if name in store.jobs() else []
    if len(going) > 1:
        names = ", ".join(trial.trial for trial in going)
        raise UsageError(f"several trials of {name} run: {names}; name the one to stop")
    trial = going[0] if going else find_trial(name)
    paths = find_run(home, trial)
    running = not trial.status.finished and paths is not None and launcher_lives(paths)
    if paths is not None and running:
        grace_s = _grace_s(paths)
        try:
            ask_to_cancel(paths, at_once=now)
        except OSError as error:
            raise HistoryError(
                f"{trial.trial} could not be told to stop: {error.filename}: {error.strerror}; "
                "send SIGINT to its zeusrun"
            ) from error
        if not as_json:
            within = "" if now else f", within {grace_s:g} s"
            typer.echo(f"{trial.trial} is told to stop{within}")
        _wait(trial, grace_s)
    recover_lost(store, trial.job, timestamp(), home)
    ended = find_trial(trial.trial)
    was_preempted = ended.status is TrialStatus.PREEMPTED
    if was_preempted:
        cancel_preempted(store, ended, home, timestamp())
        ended = find_trial(trial.trial)
    if as_json:
        print_json(ended.to_json())
    else:
        already = "" if running or was_preempted else "had ended before: it "
        reason = plain_text(ended.reason or "")
        typer.echo(f"{ended.trial} {already}is {ended.status.value}: {reason}")


def _grace_s(paths: RunPaths) -> float:
    """Return the seconds that a running job gives its script to end."""
    from zeusrun.jobfile.sections import Launch  # noqa: PLC0415
    from zeusrun.jobfile.spec import load_spec  # noqa: PLC0415

    try:
        return load_spec(paths.job_copy).launch.grace_period_s
    except ZeusrunError:  # its script has been moved since, say
        return Launch().grace_period_s


def _wait(trial: Trial, grace_s: float) -> None:
    """Wait until the launcher of a trial has let go of it.

    Raises:
        HistoryError: If it does not.
    """
    from zeusrun.launcher.rundir.layout import RunPaths  # noqa: PLC0415
    from zeusrun.launcher.rundir.lock import launcher_lives  # noqa: PLC0415

    deadline_t = time.monotonic() + grace_s + _STUCK_S
    while launcher_lives(RunPaths(Path(trial.run_dir))):
        if time.monotonic() > deadline_t:
            raise HistoryError(
                f"{trial.trial} was told to stop, but its zeusrun does not answer; it may be "
                "stopped itself: end it, and the next submit records the trial as LOST"
            )
        time.sleep(_POLL_S)


def repair(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what there is; change nothing.")
    ] = False,
    restore: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--restore", metavar="JOB", help="Put this job's history together again."),
    ] = None,
    copy: Annotated[Optional[str], typer.Option("--copy", hidden=True)] = None,  # noqa: UP045
    as_json: AsJson = False,
) -> None:
    """Put right what dead processes have left; restore histories.

    Record lost trials, put power limits back, remove left-over files.
    """
    from zeusrun.maintenance.repair import look_after  # noqa: PLC0415

    if copy is not None:
        raise UsageError(
            "--copy was removed: `zeusrun repair --restore JOB` starts from the last good copy and "
            "adds what the run directories hold; to start from another file, first copy it to "
            "history/JOB.json in ZEUSRUN_HOME"
        )
    home, store = open_home()
    if restore is not None:
        _restore(home, restore, dry_run=dry_run, as_json=as_json)
        return
    found = look_after(store, home, dry_run=dry_run)
    if as_json:
        print_json([vars(finding) for finding in found])
    else:
        from zeusrun.view.repair import repair_sheet  # noqa: PLC0415

        console().print(repair_sheet(found, home, dry_run=dry_run), highlight=False)
    problems = [finding for finding in found if finding.state == "problem"]
    for kind, error in (("history", HistoryError), ("limit", DeviceError)):
        if texts := [finding.text for finding in problems if finding.kind == kind]:
            raise error("; ".join(texts))


def _restore(home: Path, job: str, *, dry_run: bool, as_json: bool) -> None:
    """Rebuild a history from its last good copy and the run directories.

    Raises:
        HistoryError: If that is impossible.
        UsageError: If there is no such job, or with ``--dry-run``.
    """
    from zeusrun.history.rules import is_job_name  # noqa: PLC0415
    from zeusrun.maintenance.repair import read_found_trials  # noqa: PLC0415
    from zeusrun.view.repair import restore_sheet  # noqa: PLC0415

    if dry_run:
        raise UsageError(
            "--dry-run does not go with --restore, which keeps what it replaces; leave one out"
        )
    store = open_history()
    found = read_found_trials(home, job) if is_job_name(job) else []
    if not found:
        known_job(store, job)
    done = store.restore(job, found)
    if as_json:
        aside = None if done.aside is None else str(done.aside)
        print_json({**vars(done), "aside": aside})
    else:
        console().print(restore_sheet(job, done), highlight=False)


def prune(
    job: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="JOB", help="Only this job's runs."),
    ] = None,
    *,
    last: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--last", min=1, help="Keep the newest so many."),
    ] = None,
    days: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--days", min=0, help="Keep those that ended within so many days."),
    ] = None,
    size: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--size", help="Keep the newest that fit into so much, such as 20 GB."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go; remove nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove the files of old runs; never the history.

    What is kept is said by the job's own 'keep', or by these bounds.
    """
    from zeusrun.jobfile.validators import size_bytes  # noqa: PLC0415
    from zeusrun.maintenance.retention import Bounds, collect, remove  # noqa: PLC0415
    from zeusrun.view.repair import old_runs_sheet  # noqa: PLC0415

    try:
        given = Bounds(last, days, None if size is None else size_bytes(size))
    except ValueError as error:
        raise UsageError(f"--size {error}") from None
    home, store = open_home()
    now = read_clock()
    found, bounded = [], bool(given)
    for name in store.jobs() if job is None else [known_job(store, job)]:
        bounds = given or _own_bounds(store, name)
        bounded = bounded or bool(bounds)
        old = collect(store, home, name, bounds, now)
        found += old if dry_run else [run for run in old if remove(run)]
    if as_json:
        print_json([run.to_json() for run in found])
    elif not bounded:
        typer.echo(
            "nothing bounds what is kept: give --last, --days or --size, or add 'keep: {last: 30}' "
            "to the job file"
        )
    else:
        console().print(old_runs_sheet(found, dry_run=dry_run), highlight=False)


def _own_bounds(store: TinyDBHistory, job: str) -> Bounds:
    """Return what the job file of a job's last run keeps."""
    from zeusrun.jobfile.spec import load_keep  # noqa: PLC0415
    from zeusrun.launcher.rundir.layout import RunPaths  # noqa: PLC0415
    from zeusrun.maintenance.retention import Bounds, read_bounds  # noqa: PLC0415

    trials = store.trials(job, 1)
    job_copy = RunPaths(Path(trials[-1].run_dir)).job_copy if trials else None
    if job_copy is None or not job_copy.is_file():
        return Bounds()
    return read_bounds(load_keep(job_copy))


def logs(
    name: TrialName,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the trial ends.")
    ] = False,
    rank: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--rank", min=0, help="Only this rank."),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Print the lines byte for byte, control characters included."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object a line: rank and line.")
    ] = False,
) -> None:
    """Print what the ranks of a trial printed."""
    from zeusrun.launcher.rundir.layout import RunPaths, earlier_parts  # noqa: PLC0415
    from zeusrun.launcher.rundir.logs import follow_logs, log_tails  # noqa: PLC0415

    found = find_trial(name)
    paths = RunPaths(Path(found.run_dir))
    if not paths.logs.is_dir():
        raise UsageError(f"the logs of {found.trial} are gone: {paths.logs}")
    ranks = range(found.world_size) if rank is None else [rank]
    if rank is not None and rank >= found.world_size:
        raise UsageError(f"--rank {rank}: {found.trial} has ranks 0 to {found.world_size - 1}")
    if as_json and raw:
        raise UsageError("--json and --raw exclude each other; choose one")
    parts = [*earlier_parts(paths), paths]
    for part_number, part in enumerate(parts, 1):
        if len(parts) > 1 and not (as_json or raw):
            typer.echo(f"── part {part_number} of {len(parts)} ──")
        going = follow and part is paths
        for number, line in follow_logs(part, log_tails(part, ranks), follow=going, raw=raw):
            prefix = "" if rank is not None else f"[rank{number}] "
            if as_json:
                typer.echo(json.dumps({"rank": number, "line": line}))
            elif raw:
                typer.echo(os.fsencode(prefix + line))
            else:
                plain = plain_log_line(line.removeprefix(f"[rank{number}]: "))  # torch's own
                typer.echo(prefix + plain)


def open_history() -> TinyDBHistory:
    """Return the history under zeusrun's home."""
    return open_home()[1]


def open_home() -> tuple[Path, TinyDBHistory]:
    """Return zeusrun's home, and the history in it.

    Raises:
        HistoryError: If others can write to the home.
    """
    from zeusrun.files.home import trusted_home  # noqa: PLC0415
    from zeusrun.history.tinydb.store import TinyDBHistory  # noqa: PLC0415

    home = trusted_home(os.environ)
    return home, TinyDBHistory(home / "history")


def known_job(store: History, name: str) -> str:
    """Return the name of a job that has a history.

    Raises:
        UsageError: If there is none of that name.
    """
    if name not in store.jobs():
        raise unknown_job(store, name)
    return name


def unknown_job(store: History, name: str) -> UsageError:
    """Build the error for a name that no job has."""
    known = ", ".join(store.jobs()) or "none yet"
    return UsageError(f"there is no job called {name!r}; known jobs: {known}")


def find_trial(name: str) -> Trial:
    """Return the trial that a user means.

    Raises:
        UsageError: If there is none.
    """
    from zeusrun.history import lookup  # noqa: PLC0415

    return lookup.find_trial(open_history(), name)


def console(*, stderr: bool = False) -> Console:
    """Return where people read."""
    from zeusrun.view.console import PlainConsole  # noqa: PLC0415

    return PlainConsole(stderr=stderr)
