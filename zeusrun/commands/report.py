"""The verb ``report``: a page, a snippet or a figure about past runs."""

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
from zeusrun.plugins import check_extra
from zeusrun.view.belief import Belief, unknown_belief
from zeusrun.view.report import facts, page
from zeusrun.view.report.canvas import FORMATS, LIGHT, drawing, figure_bytes
from zeusrun.view.report.figures import DRAWN_TRACES, FIGURES, draw
from zeusrun.view.report.headline import detailed
from zeusrun.view.units import minute, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.errors import HistoryError
    from zeusrun.history.base import History
    from zeusrun.trial import Trial

_TRACES = 100  # the newest ones are read
_DRAWN_POINTS, _LISTED_POINTS = 120, 50
_BY_SUFFIX = {
    ".md": "md",
    ".json": "json",
    ".html": "html",
    ".htm": "html",
    **{f".{name}": name for name in FORMATS},
}
Form = Literal["html", "md", "json"]


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
            help="Where to: .html, .md, .json; a figure: .png, .svg, .pdf. By default "
            "report.html; a snippet is printed.",
        ),
    ] = None,
    form: Annotated[
        Form | None, Option("--format", help="A page, or a snippet for a model card.")
    ] = None,
    figure: Annotated[
        str | None,
        Option("--figure", metavar="NAME", help="A figure: cost, curves, noise, arms or power."),
    ] = None,
) -> None:
    """Write a page about past runs, or a snippet for a model card."""
    chosen = _format(output, form, figure)
    place = output or (Path("report.html") if chosen == "html" else None)
    if chosen in {"html", *FORMATS}:
        check_extra("zeusrun report", "report", "matplotlib")
    home, store = options.open_home(*jobs or ())
    if not store.jobs():
        raise UsageError("there are no runs yet; start one with: zeusrun submit JOB.yaml")
    files = {options.known_job(store, options.job_name(job)): job for job in jobs or store.jobs()}
    if chosen in FORMATS and len(files) > 1:
        raise UsageError(f"a figure shows one job; name one of: {', '.join(files)}")
    reports, damage = _read_jobs(home, store, files, chosen)
    text = _render_jobs(reports, chosen, figure or FIGURES[0])
    if place is None:
        typer.echo(text.decode(), nl=False)
    else:
        options.write_output(place, text)
        typer.echo(f"{place} ({size(len(text))})")
    if damage is not None:
        raise damage


def _format(output: Path | None, form: Form | None, figure: str | None) -> str:
    """Return a ``Form`` or one of ``FORMATS``; raises ``UsageError`` if the flags do not fit."""
    if output is not None and form is not None:
        raise UsageError(f"the ending of {output} sets the format; leave out --format {form}")
    chosen: str = form or "html"
    if output is not None:
        if output.suffix.lower() not in _BY_SUFFIX:
            raise UsageError(f"-o {output}: the name must end in {', '.join(_BY_SUFFIX)}")
        chosen = _BY_SUFFIX[output.suffix.lower()]
    if figure is not None and chosen not in FORMATS:
        raise UsageError("--figure needs a file for it: -o cost.svg (or .png, .pdf)")
    if figure not in {None, *FIGURES}:
        raise UsageError(f"--figure {figure}: choose one of {', '.join(FIGURES)}")
    return chosen


def _read_jobs(
    home: Path, store: History, files: dict[str, str], form: str
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
    if form != "md":
        for number in detailed(reports) if form == "html" else range(len(reports)):
            name = reports[number].facts.job
            known = store.trials(name)
            power = _read_traces(home, [each for each in known if each.status.finished])
            reports[number] = replace(reports[number], power=power)
            if form in {"html", "json"}:
                belief = _read_belief(home, files[name], known)
                reports[number] = replace(reports[number], belief=belief)
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


def _render_jobs(reports: Sequence[facts.JobReport], form: str, figure: str) -> bytes:
    if form == "json":
        return page.reports_json(reports).encode()
    if form == "md":
        return "\n".join(page.job_snippet(each.facts) for each in reports).encode()
    if form == "html":
        return page.job_page(reports, minute(timestamp())).encode()
    with drawing():
        drawn = draw(figure, reports[0], LIGHT)
        if drawn is None:
            job = reports[0].facts.job
            raise UsageError(f"{job} has nothing to draw for --figure {figure}")
        return figure_bytes(drawn, form, reports[0].facts.job)
