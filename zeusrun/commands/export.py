"""The verb ``export``: runs for other programs."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from zeusrun.analysis.savings import find_savings
from zeusrun.commands.options import job_name, known_job, open_home
from zeusrun.errors import HistoryError, UsageError
from zeusrun.export.codecarbon import COLUMNS, emission_rows
from zeusrun.export.destination import write_output
from zeusrun.export.mlflow import export_runs
from zeusrun.export.parquet import parquet_bytes
from zeusrun.export.prometheus import history_text
from zeusrun.view.export import csv_text, field_names, json_line, print_text, trial_records, utf8
from zeusrun.view.units import plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.history.base import History
    from zeusrun.trial import Trial

_URI = "MLFLOW_TRACKING_URI"
_STDOUT = ("-", "/dev/stdout")  # which may be a file that others write to
_ENDINGS = {
    ".csv": ("csv", "codecarbon"),
    ".jsonl": ("jsonl",),
    ".parquet": ("parquet",),
    ".prom": ("prometheus",),
}
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
        str | None,
        Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write here; by default, and for -, standard output.",
        ),
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
    _check_output(form, output)
    _, store = open_home(*jobs or ())
    names = [known_job(store, job_name(job)) for job in jobs or ()] or store.jobs()
    by_job, damage = _read_jobs(store, names)
    if by_job or damage is None:  # else a file of an earlier export would become empty
        if uri is not None:
            _to_mlflow(uri, by_job)
        else:
            _to_file(form, output, by_job)
    if damage is not None:
        raise damage


def _check_output(form: Format, output: str | None) -> None:
    """Raise ``UsageError`` if a format does not go with a file, or with standard output."""
    if output == "":
        raise UsageError("-o '' names no file; write -o FILE, or leave it out to print the text")
    ending = "" if output is None else Path(output).suffix.lower()
    if form not in _ENDINGS.get(ending, (form,)):
        usual = next((each for each, forms in _ENDINGS.items() if form in forms), ".txt")
        raise UsageError(
            f"-o {output} has the ending of --format {_ENDINGS[ending][0]}, but the format is "
            f"{form}; name a file such as {Path(str(output)).stem}{usual}, or change --format"
        )
    if form == "parquet" and (output is None or (output in _STDOUT and sys.stdout.isatty())):
        raise UsageError(
            "--format parquet is not text: name a file with -o FILE.parquet, or write into a pipe "
            "with -o -"
        )


def _read_jobs(
    store: History, names: Sequence[str]
) -> tuple[dict[str, Sequence[Trial]], HistoryError | None]:
    """Return the trials of each job whose history can be read, and the first damage."""
    by_job: dict[str, Sequence[Trial]] = {}
    damage: HistoryError | None = None
    for name in names:
        try:
            by_job[name] = store.trials(name, None)
        except HistoryError as error:  # still export the other jobs
            damage = damage or error
    return by_job, damage


def _to_file(form: Format, output: str | None, by_job: Mapping[str, Sequence[Trial]]) -> None:
    text, count = _content(form, by_job)
    content = utf8(text)
    if output is None or output in _STDOUT:
        print_text(content)
        return
    write_output(Path(output), content)
    if form != "prometheus":  # from cron, any output is a mail
        typer.echo(f"wrote {output}: {plural(count, 'run')}", err=True)


def _content(form: Format, by_job: Mapping[str, Sequence[Trial]]) -> tuple[str | bytes, int]:
    """Return the file of a format, oldest runs first, and how many runs are in it."""
    if form == "prometheus":
        ended = (trial.status.final for trials in by_job.values() for trial in trials)
        return history_text(by_job), sum(ended)
    if form == "codecarbon":
        trials = sorted(itertools.chain(*by_job.values()), key=lambda trial: trial.started_at)
        rows = emission_rows(trials)
        return csv_text(COLUMNS, rows), len(rows)
    found = (trial_records(trials, find_savings(trials)) for trials in by_job.values())
    records = sorted(itertools.chain(*found), key=lambda record: str(record["started_at"]))
    if form == "parquet":
        return parquet_bytes(records), len(records)
    text = csv_text(field_names(), records) if form == "csv" else "".join(map(json_line, records))
    return text, len(records)


def _to_mlflow(uri: str, by_job: Mapping[str, Sequence[Trial]]) -> None:
    if not by_job:
        typer.echo("No runs yet.")
    for job, trials in by_job.items():
        counts = export_runs(uri, job, trials)
        parts = [f"{counts[name]} {name}" for name in ("new", "changed", "already there")]
        if left_out := len(trials) - counts.total():
            parts.append(f"{left_out} not ended, left out")
        typer.echo(f"{job}: {', '.join(parts)}")
