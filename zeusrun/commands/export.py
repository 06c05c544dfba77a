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
from zeusrun.export.prometheus import history_text
from zeusrun.view.export import all_records, csv_text, json_line, print_text, utf8
from zeusrun.view.units import plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.trial import Trial

_URI = "MLFLOW_TRACKING_URI"
_STDOUT = ("-", "/dev/stdout")  # which may be a file that others write to
_ENDINGS = {"csv": ".csv", "jsonl": ".jsonl", "prometheus": ".prom"}
Format = Literal["csv", "jsonl", "mlflow", "prometheus"]


def export(
    jobs: Annotated[
        list[str] | None, Argument(metavar="JOB", help="Only these jobs; by default all.")
    ] = None,
    *,
    form: Annotated[
        Format, Option("--format", help="csv and jsonl hold every field of every run.")
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
    """Export runs: as a table, to MLflow or Prometheus."""
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
    by_job, damage = read_each(names, store.trials)
    if by_job or damage is None:  # else a file of an earlier export would become empty
        if uri is not None:
            _to_mlflow(uri, by_job)
        else:
            _to_file(form, output, by_job)
    if damage is not None:
        raise damage


def _check_output(form: Format, output: str | None) -> None:
    """Raise ``UsageError`` if the ending of a file is that of another format."""
    if output == "":
        raise UsageError("-o '' names no file; write -o FILE, or leave it out to print the text")
    ending = "" if output is None else Path(output).suffix.lower()
    others = [name for name, each in _ENDINGS.items() if each == ending and name != form]
    if others:
        raise UsageError(
            f"-o {output} has the ending of --format {others[0]}, but the format is {form}; "
            f"name a file such as {Path(str(output)).stem}{_ENDINGS[form]}, or change --format"
        )


def _to_file(form: Format, output: str | None, by_job: Mapping[str, Sequence[Trial]]) -> None:
    """Write the runs of all jobs, the oldest first."""
    if form == "prometheus":
        text, done = history_text(by_job), None  # from cron, any output is a mail
    else:
        records = all_records(by_job.values())
        text = csv_text(records) if form == "csv" else "".join(map(json_line, records))
        done = f"wrote {output}: {plural(len(records), 'run')}"
    if output is None or output in _STDOUT:
        print_text(text)
        return
    write_output(Path(output), utf8(text))
    if done is not None:
        typer.echo(done, err=True)


def _to_mlflow(uri: str, by_job: Mapping[str, Sequence[Trial]]) -> None:
    if not by_job:
        typer.echo("No runs yet.")
    for job, trials in by_job.items():
        counts = export_runs(uri, job, trials)
        parts = [f"{counts[name]} {name}" for name in ("new", "changed", "already there")]
        if left_out := len(trials) - counts.total():
            parts.append(f"{left_out} not ended, left out")
        typer.echo(f"{job}: {', '.join(parts)}")
