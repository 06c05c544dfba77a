"""The verbs that show runs: ``history``, ``show`` and ``logs``.

Only what prints tables imports them: rich takes 40 ms, which ``--json`` saves.
"""

from __future__ import annotations

import itertools
import json
import os
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from zeusrun.analysis.amounts import Group, add_up, find_totals
from zeusrun.commands import options
from zeusrun.errors import UsageError
from zeusrun.history.base import NEWEST
from zeusrun.launcher.queue.tickets import read_waiting
from zeusrun.launcher.rundir.failure import read_traceback
from zeusrun.launcher.rundir.layout import RunPaths, earlier_parts, read_live
from zeusrun.launcher.rundir.logs import follow_logs, log_tails
from zeusrun.launcher.rundir.ownership import files_of, find_own, find_place, lease_of
from zeusrun.maintenance.running import read_running
from zeusrun.plain_text import plain_log_line, plain_text
from zeusrun.run_on.registry import backend_of, describe_job, is_job, is_remote
from zeusrun.trial import TrialStatus, rank_label
from zeusrun.view.export import all_records, csv_text, json_line, print_json, print_text, sight_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.launcher.rundir.layout import Live
    from zeusrun.trial import Trial

_DEFAULT_ROWS = 30


def history(
    job: options.AnyJob = None,
    *,
    last: Annotated[
        int | None, Option(metavar="N", min=1, help="Show only the last N runs of each job.")
    ] = None,
    as_json: options.AsJson = False,
    as_csv: Annotated[bool, Option("--csv", help="Print CSV.")] = False,
    total: Annotated[
        Group | None,
        Option(
            help="Add up energy, price and carbon by job, month (of the start; if it was continued "
            "after a preemption, of the end) or GPU model."
        ),
    ] = None,
    forget: Annotated[
        str | None, Option(metavar="TRIAL", help="Keep this run, but learn nothing from it.")
    ] = None,
    unforget: Annotated[
        str | None, Option(metavar="TRIAL", help="Learn from a forgotten run again.")
    ] = None,
    import_: Annotated[
        bool, Option("--import", help="Copy this machine's runs into the shared history.")
    ] = False,
    export: Annotated[
        bool, Option("--export", help="Copy the runs of the shared history to this machine.")
    ] = False,
) -> None:
    """Show past runs, what they cost and what they saved."""
    ways = {
        "--import": import_,
        "--export": export,
        "--forget": forget,
        "--unforget": unforget,
        "--total": total,
        "--csv": as_csv,
    }
    _check_ways(ways, job, last, as_json=as_json)
    home, store = options.open_home(job, forget, unforget)
    if import_ or export:
        _transfer(home, store, job, to_shared=import_, as_json=as_json)
        return
    if (marked := forget if unforget is None else unforget) is not None:
        _mark(store, marked, forgotten=unforget is None, as_json=as_json)
        return
    names = [options.known_job(store, options.job_name(job))] if job else store.jobs()
    programs = as_json or as_csv or total is not None
    # The trials to print, and those that they are compared with.
    read = None if programs and last is None else max(last or 0, NEWEST)

    def read_job(name: str) -> tuple[list[Live], list[Trial]]:
        # Read what runs before the history: a trial that ends in between then has its outcome.
        return [] if programs else read_running(store, home, [name]), store.trials(name, read)

    found, damage = options.read_each(names, read_job)
    by_job = {name: trials for name, (_, trials) in found.items()}
    running = [live for now, _ in found.values() for live in now]
    if total is not None:
        if by_job or damage is None:
            _show_totals(itertools.chain(*by_job.values()), total, as_json=as_json)
    elif programs:
        records = all_records(by_job.values(), last)
        print_text(json_line(records) if as_json else csv_text(records))
    elif not names:
        typer.echo("No runs yet. Start one with: zeusrun submit JOB.yaml")
    else:
        _show_history(store, by_job, running, last or _DEFAULT_ROWS)
    if damage is not None:
        raise damage


def _check_ways(
    ways: Mapping[str, object], job: str | None, last: int | None, *, as_json: bool
) -> None:
    """Raise ``UsageError`` if options of ``history`` exclude each other."""
    given = [name for name, value in ways.items() if value not in (None, False)]
    if last is not None and given not in ([], ["--csv"]):
        given.append("--last")
    if job is not None and {"--forget", "--unforget"}.intersection(given):
        given.append("JOB")
    if as_json and "--csv" in given:
        given.append("--json")
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} exclude each other; leave out one of them")


def _transfer(
    home: Path, store: History, job: str | None, *, to_shared: bool, as_json: bool
) -> None:
    """Copy histories between this machine and the shared history in use."""
    from zeusrun.maintenance.transfer import transfer  # noqa: PLC0415 - few need it

    done = transfer(
        store, home, None if job is None else options.job_name(job), to_shared=to_shared
    )
    shown = "\n".join(each.describe() for each in done) or "there are no runs to copy"
    options.answer([vars(each) for each in done], shown, as_json=as_json)


def _mark(store: History, name: str, *, forgotten: bool, as_json: bool) -> None:
    """Exclude a finished trial from learning, or include it again."""
    if name in store.jobs():
        raise UsageError(f"{name} is a job; name one of its runs, such as {name}-7-1")
    trial = options.find_trial(name, store).trial
    try:
        marked = store.forget(trial, forgotten=forgotten)
    except ValueError:  # a submit may have gone on with it just now
        raise UsageError(
            f"{trial} has not ended, and only a finished run can be forgotten; "
            f"'zeusrun cancel {trial}' ends it, or records it if its launcher is dead"
        ) from None
    shown = f"zeusrun learns from {trial} again"
    if forgotten:
        shown = (
            f"{trial} is forgotten: its record stays, and zeusrun does not learn from it\n"
            f"to learn from it again: zeusrun history --unforget {trial}"
        )
    options.answer(marked.to_json(), shown, as_json=as_json)


def _show_history(
    store: History, by_job: Mapping[str, Sequence[Trial]], running: Sequence[Live], rows: int
) -> None:
    from zeusrun.view.tables import history_table  # noqa: PLC0415 - see the top

    shown, going = options.console(), {each.trial.trial: each for each in running}
    for number, (name, trials) in enumerate(by_job.items()):
        if number:
            shown.print()
        count = max(len(trials), store.count(name))
        table = history_table(name, trials, rows, count=count, running=going, width=shown.width)
        shown.print(table)


def _show_totals(trials: Iterable[Trial], group: Group, *, as_json: bool) -> None:
    """Show what all runs took; those that have not ended are left out."""
    ended = [trial for trial in trials if trial.status.finished]
    totals = find_totals(ended, group)
    if as_json:
        print_json([total.to_json(group) for total in totals])
    elif not ended:
        typer.echo("No run has ended yet. Start one with: zeusrun submit JOB.yaml")
    else:
        from zeusrun.view.tables import totals_table  # noqa: PLC0415 - see the top

        shown = options.console()
        knobs = {trial.eta_knob for trial in ended if trial.cost_j is not None}
        shown.print(totals_table(group, totals, add_up("all", ended), knobs, shown.width))


def show(
    trial: options.TrialName,
    *,
    metrics: Annotated[
        bool, Option("--metrics", help="Every metric that it produced, and who saw it.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show everything about one run."""
    home, store = options.open_home(trial)
    found, alive = options.find_trial(trial, store), False
    if metrics:
        _show_metrics(home, found, as_json=as_json)
        return
    if not found.status.finished:
        running = {each.trial.trial: each for each in read_running(store, home, [found.job])}
        found = options.find_trial(found.trial, store)  # it may have ended meanwhile
        if not found.status.finished and (live := running.get(found.trial)):
            found, alive = live.trial, live.alive
    if as_json:
        print_json(found.to_json())
        return
    from zeusrun.launcher.redact import mask_run  # noqa: PLC0415 - it reads job files
    from zeusrun.view.sheets import trial_sheet  # noqa: PLC0415 - see the top

    paths, elsewhere = _files_or_place(home, found)
    failed = found.status in {TrialStatus.FAILED, TrialStatus.OOM}
    failure = read_traceback(paths, mask_run(paths, os.environ)) if failed else None
    there = paths.logs.is_dir()
    live = read_live(paths)
    sight = None if live is None else live.sight
    sheet = trial_sheet(
        found,
        failure,
        run_dir_exists=there,
        alive=alive,
        sight=sight,
        elsewhere=elsewhere,
        shared=store.address(found.job) is not None,
    )
    options.console().print(sheet)


def _files_or_place(home: Path, trial: Trial) -> tuple[RunPaths, str | None]:
    """Return the files of a trial, or the other machine or home that has them."""
    try:
        return files_of(home, trial), None
    except UsageError:
        return RunPaths(home / "gone"), find_place(home, trial)


def _show_metrics(home: Path, found: Trial, *, as_json: bool) -> None:
    """Show every metric that a run produced."""
    live = read_live(files_of(home, found))
    if live is None or live.sight is None:
        why = "has not reported yet" if not found.status.finished else "left no such record"
        raise UsageError(f"the run {found.trial} {why}: {found.run_dir}")
    from zeusrun.view.sheets import sight_sheet  # noqa: PLC0415 - see the top

    sheet = partial(sight_sheet, found, live.sight)
    options.answer(sight_json(found, live.sight), sheet, as_json=as_json)


def logs(
    name: options.TrialName,
    *,
    follow: Annotated[bool, Option("--follow", "-f", help="Continue until the run ends.")] = False,
    rank: Annotated[int | None, Option(metavar="K", min=0, help="Print only this rank.")] = None,
    raw: Annotated[
        bool, Option(help="Print every byte, control characters and secrets included.")
    ] = False,
    as_json: Annotated[
        bool, Option("--json", help="Print one JSON object per line: rank and line.")
    ] = False,
) -> None:
    """Print the output of the ranks of a run."""
    from zeusrun.launcher.redact import mask_run  # noqa: PLC0415 - it reads job files

    plain = rank is None and not (raw or as_json)
    if plain and (place := _find_job(name)) is not None:
        _show_job(place, follow=follow)
        return
    if plain and _show_sent(name):
        return
    found, paths, ranks = _open_logs(name, rank)
    if as_json and raw:
        raise UsageError("--json and --raw exclude each other; choose one")
    mask = mask_run(paths, os.environ)
    parts = [*earlier_parts(paths), paths]
    silent = True
    for part_number, part in enumerate(parts, 1):
        if len(parts) > 1 and not (as_json or raw):
            typer.echo(f"── part {part_number} of {len(parts)} ──")
        lease = lease_of(found, paths) if follow and part is paths else None
        for number, line in follow_logs(log_tails(part, ranks), lease, raw=raw):
            silent = False
            prefix = "" if rank is not None else f"[{rank_label(found.hosts, number)}] "
            if raw:
                typer.echo(os.fsencode(prefix + line))
            elif as_json:
                typer.echo(json.dumps({"rank": number, "line": mask.text(line)}))
            else:
                text = mask.text(line).removeprefix(f"[rank{number}]: ")  # torch adds this prefix
                typer.echo(prefix + plain_log_line(text))
    if silent:
        who = "the ranks have" if rank is None else f"rank {rank} has"
        options.tell(f"{who} printed nothing")


def _show_sent(name: str) -> bool:
    """Print the end of the log of a run of another machine, if its launcher has sent it."""
    home, store = options.open_home(name)
    found = options.find_trial(name, store)
    if found.status.final or find_own(home, found) is not None:
        return False
    lines = (store.live(found.trial) or {}).get("log")
    if not isinstance(lines, list) or not lines:
        return False
    options.tell(
        f"the last lines of rank 0, as its launcher has sent them; the whole log is on {found.host}"
    )
    for line in lines:
        typer.echo(plain_text(str(line)))
    return True


def _find_job(name: str) -> str | None:
    """Return the job of a scheduler whose output ``logs`` shows; ``None``: that of a run here."""
    if is_job(name):
        return name
    home, store = options.open_home(name)
    try:
        trial = options.find_trial(name, store)
    except UsageError:  # it is raised again, unless the job is only queued
        queued = [each.allocation for each in read_waiting(home, options.job_name(name))]
        return next(filter(None, reversed(queued)), None)
    is_elsewhere = is_remote(trial.allocation) and find_own(home, trial) is None
    return trial.allocation if is_elsewhere else None


def _show_job(name: str, *, follow: bool) -> None:
    """Print what a submit in a scheduler has printed, with ``follow`` until its job has ended."""
    from zeusrun.commands.follow import load_submitter, show_source  # noqa: PLC0415 - few need it

    if (backend := backend_of(name)) is None:  # of a newer version
        raise UsageError(describe_job(name, None))
    with load_submitter(backend).open_output(name, follow=follow) as source:
        show_source(name, source)


def _open_logs(name: str, rank: int | None) -> tuple[Trial, RunPaths, Sequence[int]]:
    """Return a run, its files, and the ranks whose output is shown; raises ``UsageError``."""
    home, store = options.open_home(name)
    found = options.find_trial(name, store)
    paths = files_of(home, found)
    if not paths.logs.is_dir():
        raise UsageError(f"the logs of {found.trial} are gone: {paths.logs}")
    # An elastic training has numbers of processes, which may be larger.
    if rank is not None and rank >= found.world_size and not paths.rank_log(rank).exists():
        raise UsageError(f"--rank {rank}: {found.trial} has ranks 0 to {found.world_size - 1}")
    return found, paths, range(found.world_size) if rank is None else [rank]
