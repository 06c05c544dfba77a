"""The first page, with every job and what was saved; and the page of one job: its report."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from zeusrun.analysis.amounts import NetAmounts, add_estimates, size_label, sum_known
from zeusrun.history.base import NEWEST
from zeusrun.server.pages import document
from zeusrun.server.pages.machines import schedules_table
from zeusrun.server.pages.reports import Digest, build_total
from zeusrun.server.pages.runs import cards, runs_list, status_text
from zeusrun.view import units
from zeusrun.view.claims import cell_share, is_good, net_text
from zeusrun.view.columns import Column
from zeusrun.view.report.headline import (
    all_runs,
    carbon_saved,
    energy_saved,
    folding,
    job_head,
    money_saved,
    unbroken,
)
from zeusrun.view.report.markup import (
    Html,
    coloured,
    join,
    moment,
    pairs,
    section,
    table,
    tag,
)
from zeusrun.view.report.sections import Frame, job_sections
from zeusrun.view.units import UNKNOWN, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from zeusrun.analysis.amounts import Estimate
    from zeusrun.history.sql.survey import JobHead
    from zeusrun.launcher.rundir.layout import Live
    from zeusrun.server.pages.listing import Listing
    from zeusrun.server.pages.machines import ScheduleFacts
    from zeusrun.server.pages.reports import JobView
    from zeusrun.trial import Trial

JOBS_SHOWN = 100  # jobs on a page
_LINKS = document.Links()
_MANY = 12  # jobs; more can be searched


@dataclass(frozen=True)
class Overview:
    """What the page shows; ``heads`` are all jobs that match the search, in their order."""

    heads: Sequence[JobHead]
    shown: Sequence[JobHead]
    newest: Mapping[int, Trial]  # by ``JobHead.newest``, of the jobs shown
    digests: Mapping[str, Digest]  # of all jobs, as far as they are computed
    running: Sequence[Live]
    running_jobs: Mapping[str, int]  # how many runs of each job run now
    hosts: int
    jobs: int  # that may be seen
    listing: Listing


def sort_heads(
    heads: Sequence[JobHead], digests: Mapping[str, Digest], listing: Listing
) -> list[JobHead]:
    """Return jobs in the order of a list; what is unknown comes last, a doubtful saving is 0."""
    value = _VALUES[listing.sort]
    found = [(value(head, digests.get(head.job, _NOTHING)), head) for head in heads]
    known = [each for each in found if each[0] is not None]
    known.sort(key=operator.itemgetter(0), reverse=listing.descending)
    return [head for _, head in (*known, *(each for each in found if each[0] is None))]


def _shown(amount: Estimate | None) -> float | None:
    return None if amount is None else amount.value if amount.is_shown else 0.0


_NOTHING = Digest(0, ())
_VALUES: dict[str, Callable[[JobHead, Digest], Any]] = {
    "when": lambda head, _: (head.started_at or 0.0, head.newest),
    "job": lambda head, _: head.job,
    "saved-a-run": lambda _, digest: _shown(digest.savings.share),
    "energy-saved": lambda _, digest: _shown(digest.net.energy_j),
    "co2e-saved": lambda _, digest: _shown(digest.net.carbon_g),
    "energy": lambda _, digest: _energy_j(digest),
    "runs": lambda head, _: head.runs,
}
JOB_SORTS = tuple(_VALUES)


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
        told = net_cost if net.energy_j is None else net.energy_j
        good = is_good(told, *net.money.values(), net.carbon_g)
        lead = (
            "Against never optimising, which is every run with the default batch size of its job: "
            f"{plural(sum(compared), 'recurrence')} of {plural(len(compared), 'job')}, exploring "
            "included."
        )
    else:
        text, good = f"{plural(len(view.heads), 'job')}, {plural(runs, 'run')}", None
        lead = "What choosing batch sizes saves is known once a job has run with several of them."
        if not view.jobs:
            lead = (
                "No run has been sent here yet, or none that you may see. Set history in a job "
                "file to the address of this server, or ZEUSRUN_HISTORY, and submit it."
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
    saved = coloured(units.capitalized(unbroken(text)), good)
    title = tag("h1", saved, class_="headline", data_unknown=unknown)
    search = view.listing.search
    about = f"Jobs with {search} in their name" if search else "All jobs"
    return join((tag("p", about, class_="job"), title, tag("p", lead, class_="lead"), key))


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
    listing = view.listing
    listed = table(
        "Jobs",
        _columns(view),
        view.shown,
        lambda head: head.job,
        heading=listing.heading,
    )
    none = "" if view.shown else tag("p", "No job name contains this text.")
    search = ""
    if view.jobs > _MANY or listing.search:
        search = listing.form("Find a job", "part of a name")
    pages = listing.pages("More jobs", len(view.heads), JOBS_SHOWN)
    return section("Jobs", search, none, listed, pages, id="jobs")


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
        *(Column(name, of_job(text)) for name, text in list(_DIGEST_COLUMNS.items())[:1]),
        Column("when", of_run(lambda trial: moment(trial.started_at))),
        Column("status", of_run(status_text), left=True),
        Column("batch size", of_run(size_label)),
        Column("runs", runs),
        *(Column(name, of_job(text)) for name, text in list(_DIGEST_COLUMNS.items())[1:]),
    ]


_WAIT = tag("span", "…", data_unknown="yes", title="being computed")


def _share(digest: Digest) -> str:
    share = digest.savings.share
    return UNKNOWN if share is None else coloured(folding(cell_share(share)), digest.good)


def _energy_j(digest: Digest) -> float | None:
    return sum_known(part.sums["energy_j"] for part in digest.parts)


_DIGEST_COLUMNS: dict[str, Callable[[Digest], str]] = {
    "saved a run": _share,
    "energy": lambda each: units.electricity(_energy_j(each)),
    "energy saved": lambda each: energy_saved(each.net),
    "money saved": lambda each: money_saved(each.net),
    "CO2e saved": lambda each: carbon_saved(each.net),
}
"""What is known of a job, by the name of the column."""


_JOB_LINKS = document.Links(1)


@dataclass(frozen=True)
class JobContent:
    """What the page shows."""

    view: JobView
    running: Sequence[Live]
    running_count: int
    listing: Listing
    runs: Sequence[Trial]  # a page of the list
    found: int  # on all pages of it
    first: Trial  # the oldest of all
    schedules: Sequence[ScheduleFacts]


def job_page(content: JobContent, version: str | None) -> document.Page:
    """Return the page of a job."""
    view = content.view
    parts = [("now", "Runs now", cards(content.running, content.running_count, _JOB_LINKS))]
    if view.report is None:
        head = join((tag("p", view.job, class_="job"), tag("h1", "No run has ended yet")))
    else:
        facts = replace(view.report.facts, first_at=content.first.started_at)
        head = join((job_head(facts, "top", alone=True, moment=moment), _job_notes(view)))
        frame = Frame(
            document.pictures_of(view.report, view.pictures),
            _JOB_LINKS.link_run,
            moment=moment,
        )
        for place, title, body in job_sections(view.report, frame):
            parts.append((place, title, body))
    if content.schedules:
        parts.append(("schedule", "Schedule", schedules_table(content.schedules, _JOB_LINKS)))
    parts.append(("runs", "All runs", _all_runs(content)))
    sections = (section(title, body, id=place, data_key=place) for place, title, body in parts)
    return document.Page(
        view.job,
        join((head, *sections)),
        sections=tuple((place, title) for place, title, _ in parts),
        about=view.job,
        version=version,
    )


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
    unit = "epochs" if view.report is None else view.report.facts.unit
    return runs_list(content.listing, content.runs, content.found, _JOB_LINKS, unit)
