"""The first page, with every job and what was saved; and the page of one job: its report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from zeusrun.analysis.amounts import NetAmounts, add_estimates, size_label, sum_known
from zeusrun.history.base import NEWEST
from zeusrun.server.pages import document
from zeusrun.server.pages.machines import schedules_table
from zeusrun.server.pages.reports import build_total
from zeusrun.server.pages.runs import cards, page_links, runs_table, status_text
from zeusrun.view import units
from zeusrun.view.claims import is_good, money_saved, net_text, short_amount, short_share
from zeusrun.view.columns import Column
from zeusrun.view.report.headline import all_runs, capitalized, job_head, unbroken
from zeusrun.view.report.markup import Html, coloured, escape, join, pairs, section, table, tag
from zeusrun.view.report.sections import Frame, job_sections
from zeusrun.view.units import UNKNOWN, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from zeusrun.history.sql.survey import JobHead
    from zeusrun.launcher.rundir.record import Live
    from zeusrun.server.pages.machines import ScheduleFacts
    from zeusrun.server.pages.reports import Digest, JobView
    from zeusrun.trial import Trial

JOBS_SHOWN = 100  # jobs on a page
_LINKS = document.Links()
_MANY = 12  # jobs; more can be searched


@dataclass(frozen=True)
class Overview:
    """What the page shows; ``heads`` are all jobs that match ``search``, the newest run first."""

    heads: Sequence[JobHead]
    shown: Sequence[JobHead]
    newest: Mapping[int, Trial]  # by ``JobHead.newest``, of the jobs shown
    digests: Mapping[str, Digest]  # of all jobs, as far as they are computed
    running: Sequence[Live]
    running_jobs: Mapping[str, int]  # how many runs of each job run now
    hosts: int
    jobs: int  # that may be seen
    search: str = ""
    number: int = 1  # of this page of the list of jobs


def overview_page(view: Overview, version: str | None) -> document.Page:
    """Return the first page."""
    count = sum(view.running_jobs.values())
    pending = any(
        head.job not in view.digests or view.digests[head.job].changes != head.changes
        for head in view.heads
    )
    now = section("Runs now", cards(view.running, count, _LINKS), id="now")
    content = join((_head(view, count), now, _jobs(view)))
    return document.Page("Jobs", content, "Jobs", version=version, pending=pending)


def _head(view: Overview, running: int) -> Html:
    digests = list(view.digests.values())
    runs = sum(head.runs for head in view.heads)
    net = _join_net([digest.net for digest in digests])
    net_cost = add_estimates(digest.savings.net for digest in digests)
    compared = list(filter(None, (len(digest.savings.by_trial) for digest in digests)))
    unknown = None if len(digests) == len(view.heads) else "yes"
    if compared and net_cost is not None:
        text = net_text(net, net_cost)
        good = is_good(net_cost if net.energy_j is None else net.energy_j)
        lead = (
            "Against never optimising, which is every run with the default batch size of its job: "
            f"{plural(sum(compared), 'recurrence')} of {plural(len(compared), 'job')}, exploring "
            "included."
        )
    else:
        text, good = f"{plural(view.jobs, 'job')}, {plural(runs, 'run')}", None
        lead = "What choosing batch sizes saves is known once a job has run with several of them."
        if not view.jobs:
            lead = (
                "No run has been sent here yet. Set history in a job file to the address of "
                "this server, or ZEUSRUN_HISTORY, and submit it."
            )
    whole = build_total("all jobs", [part for digest in digests for part in digest.parts])
    values = [
        ("run now", str(running)),
        ("jobs", f"{len(view.heads):,}"),
        ("runs", f"{runs:,}"),
        *(all_runs(whole) if digests else []),
        ("machines", tag("a", str(view.hosts), href=_LINKS.to("machines"))),
    ]
    key = pairs(values, class_="key", data_unknown=unknown)
    title = tag(
        "h1", coloured(capitalized(unbroken(text)), good), class_="headline", data_unknown=unknown
    )
    return join((tag("p", "All jobs", class_="job"), title, tag("p", lead, class_="lead"), key))


def _join_net(nets: Sequence[NetAmounts]) -> NetAmounts:
    """Add up what jobs saved; of how many recurrences is not told here."""
    currencies = sorted({currency for net in nets for currency in net.money})
    return NetAmounts(
        energy_j=add_estimates(net.energy_j for net in nets),
        money={
            name: total
            for name in currencies
            if (total := add_estimates(net.money.get(name) for net in nets)) is not None
        },
        carbon_g=add_estimates(net.carbon_g for net in nets),
    )


def _jobs(view: Overview) -> Html:
    if not view.jobs:
        return Html()
    columns = _columns(view)
    listed = table("Jobs, the newest run first", columns, view.shown, lambda head: head.job)
    if not view.shown:
        listed = tag("p", "No job has such a name.")
    search = _search(view.search) if view.jobs > _MANY or view.search else ""
    return section("Jobs", search, listed, _pages(view), id="jobs")


def _columns(view: Overview) -> list[Column]:
    def of_run(text: Callable[[Trial], str]) -> Callable[[JobHead], str]:
        """Return what shows a text about the newest run of a job."""
        return lambda head: (
            text(view.newest[head.newest]) if head.newest in view.newest else UNKNOWN
        )

    def of_job(text: Callable[[Digest], str]) -> Callable[[JobHead], str]:
        """Return what shows a text about a job; a script keeps the last one until it is known."""
        return lambda head: text(view.digests[head.job]) if head.job in view.digests else _WAIT

    def runs(head: JobHead) -> str:
        running = view.running_jobs.get(head.job, 0)
        return f"{head.runs:,}" + (f", {running} now" if running else "")

    return [
        Column("job", lambda head: _LINKS.link_job(head.job)),
        Column("when", of_run(lambda trial: units.minute(trial.started_at))),
        Column("status", of_run(status_text), left=True),
        Column("batch size", of_run(size_label)),
        Column("saved a run", of_job(_share)),
        Column("energy saved", of_job(lambda e: short_amount(e.net.energy_j, units.electricity))),
        Column("money", of_job(lambda each: money_saved(each.net))),
        Column("CO2e", of_job(lambda each: short_amount(each.net.carbon_g, units.carbon))),
        Column("energy", of_job(_energy)),
        Column("runs", runs),
    ]


_WAIT = tag("span", "…", data_unknown="yes", title="being computed")


def _share(digest: Digest) -> str:
    share = digest.savings.share
    return UNKNOWN if share is None else coloured(short_share(share), digest.good)


def _energy(digest: Digest) -> str:
    return units.electricity(sum_known(part.sums["energy_j"] for part in digest.parts))


def _search(search: str) -> Html:
    field = Html(
        f'<input id="q" type="search" name="q" value="{escape(search)}" '
        'placeholder="part of a name" autocomplete="off">'
    )
    label = tag("label", "Find a job", for_="q")
    return tag("form", label, field, tag("button", "Find"), class_="find", role="search")


def _pages(view: Overview) -> Html:
    last = -(-len(view.heads) // JOBS_SHOWN)
    if last <= 1:
        return Html()

    def link(number: int, text: str) -> Html:
        query = urlencode({**({"q": view.search} if view.search else {}), "page": number})
        return tag("a", text, href=f"{_LINKS.to('')}?{query}")

    parts = [f"Page {view.number} of {last}"]
    parts += [link(view.number - 1, "newer")] if view.number > 1 else []
    parts += [link(view.number + 1, "older")] if view.number < last else []
    return page_links("More jobs", parts)


RUNS_SHOWN = 50  # runs on a page
_RECURRENCES, _FAILURES = 50, 50
_JOB_LINKS = document.Links(1)


@dataclass(frozen=True)
class JobContent:
    """What the page shows. ``runs`` are a page of them, the newest first."""

    view: JobView
    running: Sequence[Live]
    running_count: int
    runs: Sequence[Trial]
    first: Trial  # the oldest of all
    schedules: Sequence[ScheduleFacts]
    before: str | None = None  # the run that these come before; ``None``: the newest


def job_page(content: JobContent, version: str | None) -> document.Page:
    """Return the page of a job."""
    view = content.view
    parts = [("now", "Runs now", cards(content.running, content.running_count, _JOB_LINKS))]
    if view.report is None:
        head = join((tag("p", view.job, class_="job"), tag("h1", "No run has ended yet")))
    else:
        facts = replace(view.report.facts, first_at=content.first.started_at)
        head = join((job_head(facts, "top", alone=True), _job_notes(view)))
        frame = Frame(
            document.picture_of(view.report, _JOB_LINKS.job(view.job), job_version(view)),
            _JOB_LINKS.link_run,
            rows=_RECURRENCES,
            failures=_FAILURES,
            rest="all runs stand below",
        )
        parts += job_sections(view.report, frame)
    if content.schedules:
        now = {view.job} if content.running_count else set()
        parts.append(("schedule", "Schedule", schedules_table(content.schedules, _JOB_LINKS, now)))
    parts.append(("runs", "All runs", _all_runs(content)))
    sections = (section(title, body, id=place, data_key=place) for place, title, body in parts)
    return document.Page(
        view.job,
        join((head, *sections)),
        sections=tuple((place, title) for place, title, _ in parts),
        about=view.job,
        version=version,
    )


def job_version(view: JobView) -> str:
    """Return what differs if the figures of a job do."""
    traces = [] if view.report is None else [each.trial for each in view.report.power]
    return document.figures_version(view.job, view.version, traces)


def _job_notes(view: JobView) -> Html:
    notes = []
    if not view.whole:
        notes.append(
            f"The sums count all {view.runs:,} runs; figures, comparisons and tables count the "
            f"newest {NEWEST:,}."
        )
    if not document.can_draw():
        notes.append(document.NO_FIGURES)
    return join(tag("p", note, class_="note") for note in notes)


def _all_runs(content: JobContent) -> Html:
    view = content.view
    count = len(content.runs)
    which = "the newest first"
    if count < view.runs:
        which = f"{count} of {view.runs:,}, the newest first"
    unit = "epochs" if view.report is None else view.report.facts.unit
    listed = runs_table(content.runs, f"Runs: {which}", _JOB_LINKS, unit)
    own = _JOB_LINKS.job(view.job)
    parts: list[str] = []
    if content.before is not None:
        parts.append(tag("a", "newest", href=f"{own}#runs"))
    if count == RUNS_SHOWN and content.runs[-1] != content.first:
        parts.append(tag("a", "older", href=f"{own}?before={quote(content.runs[-1].trial)}#runs"))
    none = "" if count else tag("p", f"There is none before these; {plural(view.runs, 'run')}.")
    return join((none, listed, page_links("More runs", parts)))
