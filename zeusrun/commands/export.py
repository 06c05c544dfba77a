"""The verb ``export``: runs for other programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from zeusrun.commands.options import job_name, known_job, open_home, read_each, write_output
from zeusrun.errors import UsageError
from zeusrun.export.mlflow import export_runs
from zeusrun.maintenance.running import read_running
from zeusrun.plugins import check_extra
from zeusrun.view.export import print_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.launcher.rundir.layout import Live
    from zeusrun.trial import Trial

_URI = "MLFLOW_TRACKING_URI"
_STDOUT = (None, "-", "/dev/stdout")  # which may be a file that others write to


def export(
    jobs: Annotated[
        list[str] | None, Argument(metavar="JOB", help="Only these jobs; by default all.")
    ] = None,
    *,
    form: Annotated[
        Literal["mlflow", "prometheus"], Option("--format", help="The program that reads them.")
    ],
    output: Annotated[
        str | None,
        Option(
            "--output",
            "-o",
            metavar="FILE",
            help="For prometheus: write here; by default, and for -, standard output.",
        ),
    ] = None,
    uri: Annotated[
        str | None,
        Option(metavar="URI", help=f"For mlflow: the store or server; by default ${_URI}."),
    ] = None,
) -> None:
    """Export runs to MLflow or Prometheus.

    `zeusrun history --csv` prints a table.
    """
    if form == "mlflow":
        uri = uri or os.environ.get(_URI)
        if output is not None or uri is None:
            raise UsageError(
                "--format mlflow writes into a store or a server and to no file: "
                f"--uri sqlite:///mlflow.db, --uri http://localhost:5000, or {_URI}"
            )
    elif uri is not None:
        raise UsageError("--uri is only for --format mlflow; -o FILE names a file")
    home, store = open_home(*jobs or ())
    names = [known_job(store, job_name(job)) for job in jobs or ()] or store.jobs()

    def read_job(name: str) -> tuple[Sequence[Live], Sequence[Trial]]:
        # Read what runs before the history: a trial that ends in between then has its outcome.
        running = read_running(store, home, [name]) if uri is None else ()
        return [live for live in running if live.alive], store.trials(name)

    by_job, damage = read_each(names, read_job)
    if by_job or damage is None:  # else a file of an earlier export would become empty
        if uri is not None:
            _to_mlflow(uri, {job: trials for job, (_, trials) in by_job.items()})
        else:
            _to_prometheus(output, by_job)
    if damage is not None:
        raise damage


def _to_mlflow(uri: str, by_job: Mapping[str, Sequence[Trial]]) -> None:
    if not by_job:
        typer.echo("No runs yet.")
    for job, trials in by_job.items():
        counts = export_runs(uri, job, trials)
        parts = [f"{counts[name]} {name}" for name in ("new", "changed", "already there")]
        if left_out := len(trials) - counts.total():
            parts.append(f"{left_out} not ended, left out")
        typer.echo(f"{job}: {', '.join(parts)}")


def _to_prometheus(
    output: str | None, by_job: Mapping[str, tuple[Sequence[Live], Sequence[Trial]]]
) -> None:
    check_extra("--format prometheus", "prometheus", "prometheus_client")
    from zeusrun.export.prometheus import jobs_text  # noqa: PLC0415 - the extra may be missing

    if output in _STDOUT:
        print_text(jobs_text(by_job))
    else:
        write_output(Path(str(output)), jobs_text(by_job).encode())
