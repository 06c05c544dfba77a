"""The verb ``submit``, which runs a job."""

from __future__ import annotations

import contextlib
import os
import shlex
from dataclasses import replace
from pathlib import Path  # noqa: TC003 - typer reads the annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from zeusrun.commands import options
from zeusrun.commands.compose import compose
from zeusrun.commands.recurrence import run_recurrence
from zeusrun.errors import UsageError
from zeusrun.history.base import NEWEST
from zeusrun.jobfile.spec import load_spec
from zeusrun.jobfile.validators import Overlap
from zeusrun.launcher.begin import plan
from zeusrun.launcher.queue.admission import Request
from zeusrun.launcher.rundir.ownership import files_of
from zeusrun.maintenance.recover import presume_ended
from zeusrun.run_on.registry import BACKENDS
from zeusrun.view.export import print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.commands.follow import Submitter
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.context import Submission


# Options of torchrun that zeusrun sets.
_OWN_FLAGS = ("--rdzv-", "--max-restarts=0", "--shutdown-", "--monitor-", "--nnodes=1", "--local-a")

OverlapRule = Annotated[
    Overlap,
    Option(
        "--overlap",
        help="If the job is already running: allow starts a second run, forbid exits with 75, "
        "queue waits for its end, replace ends it first.",
    ),
]


def submit(
    job: Annotated[Path | None, Argument(metavar="JOB.yaml", help="The job file.")] = None,
    *,
    like: Annotated[
        str | None,
        Option(metavar="TRIAL", help="Repeat a past run: the same job and batch size."),
    ] = None,
    overrides: options.Overrides = None,
    batch_size: Annotated[
        int | None, Option(metavar="N", help="Use this candidate instead of the policy's choice.")
    ] = None,
    overlap: OverlapRule = "allow",
    wait: Annotated[
        bool, Option("--wait", help="Wait for GPUs that another job uses; by default exit 75.")
    ] = False,
    detach: Annotated[
        bool, Option("--detach", help="With a scheduler, return once the run is queued.")
    ] = False,
    dry_run: options.DryRun = False,
    verbose: Annotated[
        bool, Option("--verbose", help="With --dry-run, the whole command and its environment.")
    ] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Run the job once: choose, launch, meter, record."""
    changes = overrides or []
    request = Request(
        overrides=tuple(changes), batch_size=batch_size, overlap=overlap, wait=wait, quiet=quiet
    )
    if like is not None:
        if job is not None or batch_size is not None:
            raise UsageError(
                "--like uses the job and batch size of a past run; leave out JOB and --batch-size"
            )
        spec, request = _repeat(like, request)
    elif job is not None:
        spec = load_spec(job, changes)
    else:
        raise typer.BadParameter("name a job file, or a past run: --like TRIAL")
    elsewhere = _find_submitter(spec, request)
    if not elsewhere and detach:
        raise UsageError(
            f"--detach is for run_on: {' or '.join(BACKENDS)}; write `nohup` before the command "
            "and `&` after it"
        )
    if elsewhere and wait and detach:
        raise UsageError(
            "--wait waits for GPUs of this machine, and run_on trains elsewhere; leave it out"
        )
    if dry_run and elsewhere is not None:
        options.answer(*elsewhere.show(spec, request), as_json=as_json)
        return
    if dry_run:
        with contextlib.closing(compose(spec, request.forced)) as submission:
            _show_plan(submission, as_json=as_json, verbose=verbose)
        return
    raise typer.Exit(run_job(spec, request, detach=detach, as_json=as_json))


def _find_submitter(spec: JobSpec, request: Request) -> Submitter | None:
    """Return the submitter of a job's scheduler, or ``None``; refuse a wrong batch size early."""
    if spec.run_on is None:
        return None
    from zeusrun.commands.follow import submitter_of  # noqa: PLC0415 - few jobs need it

    elsewhere = submitter_of(spec)
    if elsewhere is not None and request.forced is not None:
        request.forced.check(spec.batch_size.candidates)
    return elsewhere


def run_job(
    spec: JobSpec,
    request: Request,
    *,
    begun: Callable[[], None] = lambda: None,
    detach: bool = False,
    as_json: bool = False,
) -> int:
    """Run a recurrence where its job says; return the exit code."""
    if (elsewhere := _find_submitter(spec, request)) is not None:
        return elsewhere.submit(spec, request, begun, detach=detach, as_json=as_json)
    return int(run_recurrence(spec, request, begun=begun, as_json=as_json)["exit_code"])


def _repeat(name: str, request: Request) -> tuple[JobSpec, Request]:
    """Return the job of a past run, and the request to run it with the same batch size."""
    home, store = options.open_home(name)
    found = options.find_trial(name, store)
    job_copy = files_of(home, found).job_copy
    if not job_copy.is_file():
        raise UsageError(
            f"the copy of the job file of {found.trial} is gone: {job_copy}; submit the job file "
            f"with --batch-size {found.global_batch_size}"
        )
    spec = load_spec(job_copy, request.overrides)
    return spec, replace(
        request,
        batch_size=found.global_batch_size,
        why=f"as in {found.trial}, by --like",
    )


def _show_plan(submission: Submission, *, as_json: bool, verbose: bool) -> None:
    trials = submission.history.trials(submission.spec.name, NEWEST)
    trials = presume_ended(submission.history, submission.home, trials)
    trial, command, remarks = plan(replace(submission, spec=submission.spec.masked()), trials)
    env = {k: v for k, v in sorted(command.env.items()) if os.environ.get(k) != v}
    if as_json:
        print_json({"trial": trial.to_json(), "argv": list(command.argv), "env": env})
    else:
        from zeusrun.view.tables import plan_sheet  # noqa: PLC0415 - a run prints no sheet

        argv = command.argv
        if not verbose and "--" in argv:  # what follows is the program that runs the script
            at = argv.index("--")
            flags = (flag for flag in argv[3:at] if not flag.startswith(_OWN_FLAGS))
            argv = ("torchrun", *flags, *argv[at + 2 :])
        sheet = plan_sheet(trial, shlex.join(argv), env if verbose else {}, remarks)
        options.console().print(sheet, soft_wrap=True)
