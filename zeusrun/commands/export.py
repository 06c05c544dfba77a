"""The verb ``export``: runs for other programs."""

from __future__ import annotations

import itertools
import os
from pathlib import Path  # noqa: TC003 - typer needs it
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from zeusrun.analysis.savings import find_savings
from zeusrun.commands.options import job_name, known_job, open_home
from zeusrun.errors import UsageError
from zeusrun.export.codecarbon import COLUMNS, emission_rows
from zeusrun.export.destination import write_output
from zeusrun.export.mlflow import export_runs
from zeusrun.export.parquet import parquet_bytes
from zeusrun.export.prometheus import history_text
from zeusrun.view.export import csv_text, field_names, json_line, print_text, trial_records, utf8

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.trial import Trial

_URI = "MLFLOW_TRACKING_URI"
Format = Literal["csv", "jsonl", "parquet", "codecarbon", "mlflow", "prometheus"]


def export(
    jobs: Annotated[
        list[str] | None, Argument(metavar="JOB", help="Only these jobs; by default all.")
    ] = None,
    *,
    form: Annotated[
        Format,
        Option("--format", help="csv, jsonl and parquet hold every field of every run."),
    ],
    output: Annotated[
        Path | None,
        Option("--output", "-o", metavar="FILE", help="Write here; by default standard output."),
    ] = None,
    uri: Annotated[
        str | None,
        Option(metavar="URI", help=f"For mlflow: the store or server; by default ${_URI}."),
    ] = None,
) -> None:
    """Export runs: as a table, to CodeCarbon, MLflow or Prometheus."""
    if form == "mlflow":
        uri = uri or os.environ.get(_URI)
        if output is not None or uri is None:
            raise UsageError(
                "--format mlflow writes into a store or a server and to no file: "
                f"--uri sqlite:///mlflow.db, --uri http://localhost:5000, or {_URI}"
            )
    elif uri is not None:
        raise UsageError("--uri is only for --format mlflow; -o FILE names a file")
    if form == "parquet" and output is None:
        raise UsageError("--format parquet is not text: name a file with -o FILE.parquet")
    _, store = open_home()
    names = [known_job(store, job_name(job)) for job in jobs or ()] or store.jobs()
    by_job = {name: store.trials(name, None) for name in names}
    if uri is not None:
        _to_mlflow(uri, by_job)
        return
    content = utf8(_content(form, by_job))
    if output is None or str(output) == "/dev/stdout":  # which may be a file that others write to
        print_text(content)
    else:
        write_output(output, content)


def _content(form: Format, by_job: Mapping[str, Sequence[Trial]]) -> str | bytes:
    """Return the file of a format, oldest runs first."""
    if form == "prometheus":
        return history_text(by_job)
    if form == "codecarbon":
        trials = sorted(itertools.chain(*by_job.values()), key=lambda trial: trial.started_at)
        return csv_text(COLUMNS, emission_rows(trials))
    found = (trial_records(trials, find_savings(trials)) for trials in by_job.values())
    records = sorted(itertools.chain(*found), key=lambda record: str(record["started_at"]))
    if form == "parquet":
        return parquet_bytes(records)
    return csv_text(field_names(), records) if form == "csv" else "".join(map(json_line, records))


def _to_mlflow(uri: str, by_job: Mapping[str, Sequence[Trial]]) -> None:
    if not by_job:
        typer.echo("No runs yet.")
    for job, trials in by_job.items():
        counts = export_runs(uri, job, trials)
        parts = [f"{counts[name]} {name}" for name in ("new", "changed", "already there")]
        if left_out := len(trials) - counts.total():
            parts.append(f"{left_out} not ended, left out")
        typer.echo(f"{job}: {', '.join(parts)}")
