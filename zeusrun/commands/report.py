"""The verb ``report``: a page about past runs, or its numbers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from zeusrun.clock import timestamp
from zeusrun.commands import options
from zeusrun.energy.power_trace import read_power
from zeusrun.errors import UsageError, ZeusrunError
from zeusrun.history.base import NEWEST
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.rundir.ownership import files_of, newest_here
from zeusrun.maintenance.recover import presume_ended
from zeusrun.plugins import check_extra
from zeusrun.view.belief import Belief, unknown_belief
from zeusrun.view.report import facts, page
from zeusrun.view.report.figures import DRAWN_TRACES
from zeusrun.view.report.headline import detailed
from zeusrun.view.units import minute, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.errors import HistoryError
    from zeusrun.history.base import History
    from zeusrun.trial import Trial

Form = Literal["html", "json"]
_TRACES = 100  # the newest ones are read
_DRAWN_POINTS, _LISTED_POINTS = 120, 50
_BY_SUFFIX: dict[str, Form] = {".json": "json", ".html": "html", ".htm": "html"}


def report(
    jobs: Annotated[
        list[str] | None,
        Argument(metavar="JOB", help="Names of jobs, or job files; by default all jobs."),
    ] = None,
    *,
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file, .html or .json; by default report.html, and JSON is printed.",
        ),
    ] = None,
    form: Annotated[Form | None, Option("--format", help="A page, or all of its numbers.")] = None,
) -> None:
    """Write a page about past runs, or its numbers as JSON."""
    chosen = _format(output, form)
    place = output or (Path("report.html") if chosen == "html" else None)
    if chosen == "html":
        check_extra("zeusrun report", "report", "matplotlib")
    home, store = options.open_home(*jobs or ())
    if not store.jobs():
        raise UsageError("there are no runs yet; start one with: zeusrun submit JOB.yaml")
    files = {options.known_job(store, options.job_name(job)): job for job in jobs or store.jobs()}
    reports, damage = _read_jobs(home, store, files, chosen)
    made = (
        page.reports_json(reports)
        if chosen == "json"
        else page.job_page(reports, minute(timestamp()))
    )
    text = made.encode()
    if place is None:
        typer.echo(text.decode(), nl=False)
    else:
        options.write_output(place, text)
        typer.echo(f"{place} ({size(len(text))})")
    if damage is not None:
        raise damage


def _format(output: Path | None, form: Form | None) -> Form:
    """Return the format; raises ``UsageError`` if the flags do not fit."""
    if output is not None and form is not None:
        raise UsageError(f"the ending of {output} sets the format; leave out --format {form}")
    if output is None:
        return form or "html"
    if output.suffix.lower() not in _BY_SUFFIX:
        raise UsageError(f"-o {output}: the name must end in {', '.join(_BY_SUFFIX)}")
    return _BY_SUFFIX[output.suffix.lower()]


def _read_jobs(
    home: Path, store: History, files: dict[str, str], form: Form
) -> tuple[list[facts.JobReport], HistoryError | None]:
    """Return all about jobs of which a run has ended, and the first damage.

    ``files`` are the names of the jobs, each with what the user wrote: a name or a job file.
    """

    def read(name: str) -> facts.JobReport | None:
        known = store.trials(name)
        ended = any(trial.status.finished for trial in known)
        return facts.JobReport(facts.build_facts(name, known)) if ended else None

    found, damage = options.read_each(files, read)
    reports = list(filter(None, found.values()))
    if not reports:
        none = UsageError("no run has ended yet; `zeusrun status` shows what runs now")
        raise damage or none
    for number in detailed(reports) if form == "html" else range(len(reports)):
        name = reports[number].facts.job
        known = store.trials(name)
        power = _read_traces(home, [each for each in known if each.status.finished])
        belief = _read_belief(home, files[name], presume_ended(store, home, known))
        reports[number] = replace(reports[number], power=power, belief=belief)
    return reports, damage


def _read_traces(home: Path, trials: Sequence[Trial]) -> tuple[facts.PowerFacts, ...]:
    """Return the newest power traces, oldest first; run directories may be gone, or elsewhere."""
    found: list[facts.PowerFacts] = []
    for trial in reversed(trials):
        points = _DRAWN_POINTS if len(found) < DRAWN_TRACES else _LISTED_POINTS
        trace = None
        with suppress(UsageError):
            trace = read_power(files_of(home, trial).power, points)
        if trace is not None:
            found.append(facts.build_power(trial, trace))
        if len(found) == _TRACES:
            break
    return tuple(found[::-1])


def _read_belief(home: Path, given: str, trials: Sequence[Trial]) -> Belief:
    """Return what the policy believes of the hardware of the newest run, wherever this runs."""
    newest = trials[-NEWEST:]
    last = newest_here(home, newest) or newest[-1]
    path = RunPaths(Path(last.run_dir)).job_copy
    try:
        if Path(given).suffix in {".yaml", ".yml"}:
            path = Path(given)
        elif not path.is_file():
            raise UsageError(f"there is no job file {path}; name your own: zeusrun report JOB.yaml")
        spec = load_spec(path)
    except ZeusrunError as error:
        return unknown_belief(error)
    return facts.build_belief(spec, newest)
