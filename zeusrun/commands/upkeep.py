"""The verbs that maintain an installation: ``repair``, ``gc`` and ``doctor``."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from zeusrun.clock import read_clock
from zeusrun.commands import options
from zeusrun.errors import DeviceError, ExitCode, HistoryError, LaunchError
from zeusrun.files.home import trusted_home
from zeusrun.history.base import NEWEST
from zeusrun.history.registry import chosen_histories, find_default, open_history, open_shared
from zeusrun.job_name import is_job_name
from zeusrun.jobfile.spec import load_keep, load_spec
from zeusrun.jobfile.tariffs import load_tariffs
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.rundir.ownership import newest_here
from zeusrun.maintenance.doctor import Check, attempt, check_machine, check_server, check_unused
from zeusrun.maintenance.repair import find_and_repair, find_damage, read_found_trials
from zeusrun.maintenance.retention import collect, remove
from zeusrun.schedule.build import find_difference
from zeusrun.schedule.crontab import find_neglect
from zeusrun.schedule.store import Schedules
from zeusrun.view.export import print_json
from zeusrun.view.upkeep import doctor_sheet, old_runs_sheet, repair_sheet, restore_sheet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.history.base import History
    from zeusrun.maintenance.retention import OldRun


def repair(
    *,
    restore: Annotated[str | None, Option(metavar="JOB", help="Rebuild its history.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Clean up after dead processes; restore histories.

    Ends orphan processes, records lost trials and resets power limits.
    """
    home, store = options.open_home()
    if restore is not None:
        _restore(home, store, restore, as_json=as_json)
        return
    found = find_and_repair(store, home)
    sheet = repair_sheet(found, home)
    options.answer([vars(finding) for finding in found], sheet, as_json=as_json)
    problems = [finding for finding in found if finding.state == "problem"]
    for kind, error in (
        ("history", HistoryError),
        ("limit", DeviceError),
        ("process", LaunchError),
    ):
        if texts := [finding.text for finding in problems if finding.kind == kind]:
            raise error("; ".join(texts))


def _restore(home: Path, store: History, job: str, *, as_json: bool) -> None:
    """Rebuild a history from its last good copy and the run directories."""
    found = read_found_trials(home, job) if is_job_name(job) else []
    if not found:
        options.known_job(store, job)
    done = store.restore(job, found)
    record = {**vars(done), "aside": done.aside and str(done.aside)}
    if store.address(job) is not None:
        of = f"{len(done.found)} of {len(found)} runs of this machine"
        options.answer(record, f"{job}: {of} were missing on the server", as_json=as_json)
    else:
        options.answer(record, restore_sheet(job, done), as_json=as_json)


def prune(
    job: options.AnyJob = None,
    *,
    last: Annotated[int | None, Option(metavar="N", min=1, help="Keep the newest N runs.")] = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Remove the files of old runs; the history stays.

    --last, or else the 'keep' section of the job file, says which runs to keep.
    """
    home, store = options.open_home(job)
    job = None if job is None else options.job_name(job)
    now = read_clock()

    def clear(name: str) -> list[OldRun]:
        old = collect(store, home, name, last or _own_last(store, home, name), now)
        return old if dry_run else [run for run in old if remove(run)]

    names = store.jobs() if job is None else [options.known_job(store, job)]
    by_job, damage = options.read_each(names, clear)
    found = [run for old in by_job.values() for run in old]
    if as_json:
        print_json([run.to_json() for run in found])
    elif not found and last is None and damage is None:
        typer.echo("nothing to remove; without --last, the limit is keep.last of the job file")
    elif found or damage is None:
        options.console().print(old_runs_sheet(found, dry_run=dry_run))
    if damage is not None:
        raise damage


def _own_last(store: History, home: Path, job: str) -> int | None:
    """Return the limit in the job file of the last run of this machine."""
    last = newest_here(home, store.trials(job, NEWEST))
    job_copy = None if last is None else RunPaths(Path(last.run_dir)).job_copy
    return load_keep(job_copy).last if job_copy is not None and job_copy.is_file() else None


def doctor(*, as_json: options.AsJson = False) -> None:
    """Check this machine, the home, histories and schedules."""
    checks = check_machine(os.environ)
    home = None
    with contextlib.suppress(HistoryError):  # the check of the home directory reports this
        home = trusted_home(os.environ)
    if home is not None:
        checks += [*_check_servers(home), *_check_histories(home)]
        checks += _check_schedules(Schedules(home))
    options.answer([vars(check) for check in checks], doctor_sheet(checks), as_json=as_json)
    if any(check.well is False for check in checks):
        raise typer.Exit(ExitCode.LAUNCH)


def _check_servers(home: Path) -> list[Check]:
    """Check the shared histories that this machine uses, and what waits for them."""
    try:
        default, source = find_default(home, os.environ)
    except HistoryError as error:
        return [Check("server", well=False, found=str(error))]
    names = {default, *chosen_histories(home).values()}

    def check(name: str) -> Sequence[Check]:
        from_ = source if name == default else ""
        return check_server(open_shared(home, os.environ, name, source=from_))

    shared = sorted(each for each in names if "://" in each)
    checks = [found for name in shared for found in attempt("server", partial(check, name))]
    return checks + check_unused(home, names)


def _check_histories(home: Path) -> Sequence[Check]:
    """Check that the history of each job can be read and contains its ended runs."""

    def check() -> list[Check]:
        damages = find_damage(open_history(home, os.environ), home)
        return [Check("history", well=False, found=damage.text) for damage in damages]

    return attempt("history", check)


def _check_schedules(schedules: Schedules) -> list[Check]:
    """Check that schedules are started, and that their jobs could run."""
    jobs = schedules.jobs()
    if not jobs:
        return []
    count = "1 job is scheduled" if len(jobs) == 1 else f"{len(jobs)} jobs are scheduled"
    neglect = find_neglect(schedules, read_clock())
    if neglect is None:
        checks = [Check("schedules", well=True, found=f"{count}, checked every minute")]
    else:
        what, advice = neglect
        checks = [Check("schedules", well=False, found=f"{count}; {what}", advice=advice)]

    def check(job: str) -> list[Check]:
        schedule = schedules.read(job)
        difference = find_difference(schedule)
        load_tariffs(load_spec(Path(schedule.job_file)))
        return [Check("schedule", well=None, found=difference)] if difference else []

    for job in jobs:
        checks += attempt("schedule", partial(check, job), f"{job} cannot run: ")
    return checks
