"""The page of a job: its report, what runs now, its schedules and all its runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zeusrun.history.base import NEWEST
from zeusrun.server.pages.document import Links, Page
from zeusrun.server.pages.machines import schedules_table
from zeusrun.server.pages.pictures import NO_FIGURES, can_draw, figures_version, picture_of
from zeusrun.server.pages.runs import cards, page_links, runs_table
from zeusrun.view.report.headline import job_head
from zeusrun.view.report.markup import Html, join, section, tag
from zeusrun.view.report.sections import Frame, job_sections
from zeusrun.view.units import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.launcher.rundir.record import Live
    from zeusrun.server.pages.hosts import ScheduleFacts
    from zeusrun.server.pages.reports import JobView
    from zeusrun.trial import Trial

ROWS = 50  # runs on a page
_RECURRENCES, _FAILURES = 50, 50
_LINKS = Links(1)


@dataclass(frozen=True)
class JobContent:
    """What the page shows. ``runs`` are a page of them with their numbers, the newest first."""

    view: JobView
    running: Sequence[Live]
    running_count: int
    runs: Sequence[tuple[int, Trial]]
    first: Trial  # the oldest of all
    schedules: Sequence[ScheduleFacts]
    before: int | None = None  # the number that the runs come before; ``None``: the newest


def job_page(content: JobContent, version: str | None) -> Page:
    """Return the page of a job."""
    view = content.view
    parts = [("now", "Runs now", cards(content.running, content.running_count, _LINKS))]
    if view.report is None:
        head = join((tag("p", view.job, class_="job"), tag("h1", "No run has ended yet")))
    else:
        facts = replace(view.report.facts, first_at=content.first.started_at)
        head = join((job_head(facts, "top", alone=True), _notes(view)))
        frame = Frame(
            picture_of(view.report, _LINKS.job(view.job), job_version(view)),
            _LINKS.link_run,
            rows=_RECURRENCES,
            failures=_FAILURES,
            rest="all runs stand below",
        )
        parts += job_sections(view.report, frame)
    if content.schedules:
        now = {view.job} if content.running_count else set()
        parts.append(("schedule", "Schedule", schedules_table(content.schedules, _LINKS, now)))
    parts.append(("runs", "All runs", _runs(content)))
    sections = (section(title, body, id=place, data_key=place) for place, title, body in parts)
    return Page(
        view.job,
        join((head, *sections)),
        sections=tuple((place, title) for place, title, _ in parts),
        about=view.job,
        version=version,
    )


def job_version(view: JobView) -> str:
    """Return what differs if the figures of a job do."""
    traces = [] if view.report is None else [each.trial for each in view.report.power]
    return figures_version(view.job, view.version, traces)


def _notes(view: JobView) -> Html:
    notes = []
    if not view.whole:
        notes.append(
            f"The sums count all {view.runs:,} runs; figures, comparisons and tables count the "
            f"newest {NEWEST:,}."
        )
    if not can_draw():
        notes.append(NO_FIGURES)
    return join(tag("p", note, class_="note") for note in notes)


def _runs(content: JobContent) -> Html:
    view = content.view
    count = len(content.runs)
    which = "the newest first"
    if count < view.runs:
        which = f"{count} of {view.runs:,}, the newest first"
    trials = [trial for _, trial in content.runs]
    unit = "epochs" if view.report is None else view.report.facts.unit
    listed = runs_table(trials, f"Runs: {which}", _LINKS, unit)
    own = _LINKS.job(view.job)
    parts: list[str] = []
    if content.before is not None:
        parts.append(tag("a", "newest", href=f"{own}#runs"))
    if count == ROWS and content.runs[-1][1] != content.first:
        parts.append(tag("a", "older", href=f"{own}?before={content.runs[-1][0]}#runs"))
    none = "" if count else tag("p", f"There is none before these; {plural(view.runs, 'run')}.")
    return join((none, listed, page_links("More runs", parts)))
