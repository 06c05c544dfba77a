"""The verb ``report``: a page, a snippet or a figure about past runs."""

from __future__ import annotations

import importlib.util
import os
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import typer
from typer import Argument, Option

from zeusrun.analysis.cost_baseline import has_cost
from zeusrun.bandit.registry import create_policy
from zeusrun.bandit.reinterpret import read_history
from zeusrun.clock import read_clock, timestamp
from zeusrun.commands.options import job_file, job_name, known_job, open_home
from zeusrun.energy.power_trace import read_power
from zeusrun.errors import UsageError, ZeusrunError
from zeusrun.files.atomic import replace_file, temporary_path
from zeusrun.history.base import NEWEST
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.choose import build_problem
from zeusrun.launcher.context import Submission
from zeusrun.launcher.processes.command import find_torchrun
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.view.report import charts
from zeusrun.view.report.canvas import drawing
from zeusrun.view.report.charts import FIGURES
from zeusrun.view.report.compare import Comparison, compare, find_kind, within
from zeusrun.view.report.comparison_page import comparison_rows, comparison_section
from zeusrun.view.report.facts import build_facts
from zeusrun.view.report.job_report import Belief, JobReport
from zeusrun.view.report.markup import join
from zeusrun.view.report.page import build_page
from zeusrun.view.report.palette import LIGHT
from zeusrun.view.report.power import build_power, find_stalls
from zeusrun.view.report.sections import job_sections, overview
from zeusrun.view.report.snippet import (
    comparison_json,
    comparison_snippet,
    job_snippet,
    reports_json,
)
from zeusrun.view.report.svg import FORMATS, figure_bytes
from zeusrun.view.report.words import moment
from zeusrun.view.units import plural, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.energy.power_trace import PowerTrace
    from zeusrun.history.base import History
    from zeusrun.trial import Trial

_TRACES = 100  # the newest ones are read
_DRAWN_POINTS, _LISTED_POINTS = 120, 50
_BY_SUFFIX = {".md": "md", ".tex": "latex", ".json": "json", ".html": "html", ".htm": "html"}
Form = Literal["html", "md", "latex", "json"]


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
            help="Where to: .html, .md, .tex, .json; a figure: .png, .svg, .pdf. By default "
            "report.html; a snippet is printed.",
        ),
    ] = None,
    form: Annotated[
        Form | None, Option("--format", help="A page, or a snippet for a model card or a paper.")
    ] = None,
    figure: Annotated[
        str | None,
        Option("--figure", metavar="NAME", help="For a figure: cost, curves, arms or power."),
    ] = None,
    sides: Annotated[
        tuple[str, str] | None,
        Option(
            "--compare",
            metavar="A B",
            help="Two jobs, two batch sizes (64 256) or two spans (2026-01..2026-03 2026-04..).",
        ),
    ] = None,
) -> None:
    """Write a page about past runs, or a snippet for a paper."""
    if sides is not None and figure is not None:
        raise UsageError(f"--compare draws its own figure; leave out --figure {figure}")
    drawn = output is not None and output.suffix.lower().removeprefix(".") in FORMATS
    chosen = _form(output, form, figure, drawn=drawn)
    place = output or (Path("report.html") if chosen == "html" else None)
    if place is not None:
        _check(place)
    if drawn or chosen == "html":
        _need_matplotlib()
    home, store = open_home()
    if not store.jobs():
        raise UsageError("there are no runs yet; start one with: zeusrun submit JOB.yaml")
    if sides is not None:
        subject, comparison = _compare(store, jobs or [], sides)
        text = _comparison_text(comparison, subject, chosen, place, drawn=drawn)
    else:
        files = {known_job(store, job_name(job)): job for job in jobs or store.jobs()}
        names = list(files)
        if drawn and len(names) > 1:
            raise UsageError(f"a figure shows one job; name one of: {', '.join(names)}")
        deep = drawn or chosen in {"html", "json"}
        reports = [r for name in names if (r := _read((home, store), name, files[name], deep=deep))]
        if not reports:
            raise UsageError("no run has ended yet; `zeusrun status` shows what runs now")
        text = _text(reports, chosen, figure or FIGURES[0], place, drawn=drawn)
    if place is None:
        typer.echo(text.decode(), nl=False)
        return
    _write(place, text)
    typer.echo(f"{place} ({size(len(text))})")


def _form(output: Path | None, form: Form | None, figure: str | None, *, drawn: bool) -> str:
    """Return the format of the text; raises ``UsageError`` if the flags do not fit."""
    if drawn:
        if form is not None:
            raise UsageError(f"--format {form} does not fit {output}, a figure; leave it out")
        if figure is not None and figure not in FIGURES:
            raise UsageError(f"--figure {figure}: choose one of {', '.join(FIGURES)}")
        return "figure"
    if figure is not None:
        raise UsageError("--figure needs a file for it: -o cost.svg (or .png, .pdf)")
    if form is not None or output is None:
        return form or "html"
    found = _BY_SUFFIX.get(output.suffix.lower())
    if found is None:
        known = ", ".join([*_BY_SUFFIX, *(f".{name}" for name in FORMATS)])
        raise UsageError(f"-o {output}: the name must end in {known}; or choose a --format")
    return found


def _check(place: Path) -> None:
    """Raise ``UsageError`` if a file cannot be written, before anything is read."""
    folder = place.resolve().parent
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(place.stat().st_mode):
            raise UsageError(f"-o {place} is not a regular file; name a file to write")
    if not os.access(folder, os.W_OK):
        missing = "does not exist" if not folder.exists() else "cannot be written"
        raise UsageError(f"-o {place}: the directory {folder} {missing}; name a file elsewhere")


def _need_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError('the report needs matplotlib: pip install "zeusrun[report]"')


def _write(place: Path, text: bytes) -> None:
    target = place.resolve()
    try:
        replace_file(target, text, durable=False, fresh=temporary_path(target))
    except OSError as error:
        raise UsageError(f"-o {place} cannot be written: {error.strerror or error}") from error


def _read(place: tuple[Path, History], name: str, given: str, *, deep: bool) -> JobReport | None:
    """Return all about a job; ``None`` if no run has ended. ``deep``: also power and belief."""
    known = place[1].trials(name)
    trials = [trial for trial in known if trial.status.finished]
    if not trials:
        return None
    facts, stalls = build_facts(name, known), tuple(find_stalls(trials))
    if not deep:
        return JobReport(facts, stalls=stalls)
    power = tuple(build_power(_read_traces(trials), trials))
    return JobReport(facts, _read_belief(place, given, known), power, stalls)


def _read_traces(trials: Sequence[Trial]) -> list[tuple[Trial, PowerTrace]]:
    """Return the newest traces, oldest first; run directories may be gone."""
    found: list[tuple[Trial, PowerTrace]] = []
    for trial in reversed(trials):
        points = _DRAWN_POINTS if len(found) < charts.DRAWN_TRACES else _LISTED_POINTS
        trace = read_power(RunPaths(Path(trial.run_dir)).power, points)
        if trace is not None:
            found.append((trial, trace))
        if len(found) == _TRACES:
            break
    return found[::-1]


def _read_belief(place: tuple[Path, History], given: str, trials: Sequence[Trial]) -> Belief:
    """Return what the policy believes of the hardware of the newest run, wherever this runs."""
    newest, (home, store) = trials[-NEWEST:], place
    usual = next((trial for trial in reversed(newest) if has_cost(trial)), newest[-1])
    try:
        spec = load_spec(job_file(given))
        submission = Submission(
            spec=spec,
            history=store,
            policy=create_policy(spec.policy.name),
            devices=(),
            world_size=usual.world_size,
            torchrun=find_torchrun(),
            home=home,
            environment={},
        )
        problem = replace(
            build_problem(submission, newest),
            gpu_model=usual.gpu_model,
            gpu_count=usual.gpu_count,
            max_power_w=usual.max_power_w,
        )
        problem, runs = read_history(problem, newest)
        rng = np.random.default_rng(spec.policy.seed)
        arms = submission.policy.explain(problem, runs, rng)
    except ZeusrunError as error:
        return Belief(missing=f"What the policy believes is unknown: {error}")
    return Belief(tuple(arms), submission.policy.name)


def _text(
    reports: Sequence[JobReport], form: str, figure: str, place: Path | None, *, drawn: bool
) -> bytes:
    if drawn and place is not None:
        with drawing():
            shown = charts.draw(figure, reports[0].facts, reports[0].power, LIGHT)
            if shown is None:
                raise UsageError(
                    f"{reports[0].facts.job} has nothing to draw for --figure {figure}"
                )
            return figure_bytes(shown, place.suffix.lower().removeprefix("."))
    if form == "json":
        return reports_json(reports).encode()
    if form in {"md", "latex"}:
        kind: Literal["md", "latex"] = "md" if form == "md" else "latex"
        return "\n".join(job_snippet(each.facts, kind) for each in reports).encode()
    alone = len(reports) == 1
    with drawing():
        parts = [job_sections(each, f"j{n}", alone=alone) for n, each in enumerate(reports)]
    if alone:
        (content, links), title = parts[0], f"{reports[0].facts.job}: zeusrun report"
    else:
        title = f"zeusrun report: {plural(len(reports), 'job')}"
        content = join((overview(reports), *(part for part, _ in parts)))
        links = [(f"j{n}-top", each.facts.job) for n, each in enumerate(reports)]
    return build_page(title, links, content, moment(timestamp(read_clock()))).encode()


def _compare(store: History, jobs: Sequence[str], sides: tuple[str, str]) -> tuple[str, Comparison]:
    kind = find_kind(sides, store.jobs())
    if kind == "jobs":
        if jobs:
            raise UsageError(
                f"--compare {' '.join(sides)} names two jobs; leave out {' '.join(jobs)}"
            )
        left, right = ([t for t in store.trials(side) if t.status.finished] for side in sides)
        return "two jobs", compare(sides, left, right)
    known = store.jobs()
    if len(jobs) != 1 and not (not jobs and len(known) == 1):
        raise UsageError(
            f"--compare {' '.join(sides)} compares runs of one job; name it: zeusrun report JOB "
            f"--compare {' '.join(sides)}; known jobs: {', '.join(known)}"
        )
    name = known_job(store, job_name(jobs[0])) if jobs else known[0]
    trials = [trial for trial in store.trials(name) if trial.status.finished]
    groups = [within(trials, side, kind) for side in sides]
    for side, group in zip(sides, groups, strict=True):
        if not group:
            tried = ", ".join(str(n) for n in sorted({t.global_batch_size for t in trials}))
            what = f"batch size {side}; it has used {tried}" if kind == "batch sizes" else side
            raise UsageError(f"--compare {side}: {name} has no finished run of {what}")
    names = tuple(f"batch size {side}" if kind == "batch sizes" else side for side in sides)
    return name, compare((names[0], names[1]), *groups)


def _comparison_text(
    comparison: Comparison, subject: str, form: str, place: Path | None, *, drawn: bool
) -> bytes:
    if drawn and place is not None:
        with drawing():
            shown = charts.draw_comparison(comparison, LIGHT)
            if shown is None:
                raise UsageError(f"nothing to draw: {comparison.headline}")
            return figure_bytes(shown, place.suffix.lower().removeprefix("."))
    if form == "json":
        return comparison_json(comparison).encode()
    if form in {"md", "latex"}:
        kind: Literal["md", "latex"] = "md" if form == "md" else "latex"
        return comparison_snippet(comparison, comparison_rows(comparison), kind).encode()
    with drawing():
        content = comparison_section(comparison, subject)
    title = f"{' and '.join(comparison.names)}: zeusrun report"
    return build_page(title, (), content, moment(timestamp(read_clock()))).encode()
