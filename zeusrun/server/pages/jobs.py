"""The first page, with every job and what was saved; and the page of one job: its report."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zeusrun.analysis.amounts import size_label, sum_known
from zeusrun.analysis.estimates import NetAmounts, add_estimates
from zeusrun.history.base import NEWEST
from zeusrun.history.sql import survey
from zeusrun.server.pages import document
from zeusrun.server.pages.machines import schedules_table
from zeusrun.server.pages.reports import Digest, build_total
from zeusrun.server.pages.runs import running_table, runs_list, status_text
from zeusrun.view import units
from zeusrun.view.claims import is_good, net_text
from zeusrun.view.columns import Column
from zeusrun.view.report import headline
from zeusrun.view.report.markup import Html, coloured, join, moment, pairs, section, table, tag
from zeusrun.view.report.sections import Frame, job_sections
from zeusrun.view.units import UNKNOWN, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from zeusrun.analysis.estimates import Estimate
    from zeusrun.history.sql.survey import JobHead
    from zeusrun.server.pages.reports import JobView, Visit
    from zeusrun.trial import Trial

JOBS_SHOWN = 100  # jobs on a page
_RUNS_SHOWN = 15  # on the page of a job
_DAYS = {"all-time": None, "90-days": 90, "30-days": 30, "7-days": 7}
_SPANS = ("since", (*_DAYS,))
_MANY = 12  # jobs; more can be searched
_WAIT_S = 0.15  # how long the page waits for the savings of jobs; it asks again for the rest


def sort_heads(
    heads: Sequence[JobHead], digests: Mapping[str, Digest], listing: document.Listing
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
    "saved-so-far": lambda _, digest: _shown(digest.net.energy_j),
    "energy": lambda _, digest: _energy_j(digest),
    "runs": lambda head, _: head.runs,
}
JOB_SORTS = tuple(_VALUES)
_AMOUNTS: dict[str, Callable[[NetAmounts], str]] = {
    "energy": headline.energy_saved,
    "money": headline.money_saved,
    "CO2e": headline.carbon_saved,
}
_SAVED = (
    "Saved a run: what a run with the batch size in use saves of its cost. Saved so far: by all "
    "recurrences since then, exploring included. Not shown: its range contains 0."
)


def overview_page(visit: Visit) -> document.Page:
    """Return the first page."""
    seen = visit.heads()
    listing = document.read_listing(
        visit.request.query_params, "./", "jobs", JOB_SORTS, ("saved", (*_AMOUNTS,))
    )
    search = listing.search.casefold()
    found = [head for head in seen if search in head.job.casefold()]
    digests = visit.reports.digests(found, _WAIT_S)
    heads = sort_heads(found, digests, listing)
    running, counts = visit.running([head.job for head in heads] if search else None)
    running_now, hosts = sum(counts.values()), survey.count_hosts(visit.engine)
    key = [
        ("running", str(running_now)),
        ("jobs", f"{len(heads):,}"),
        ("runs", f"{sum(head.runs for head in heads):,}"),
        *_all_runs(digests),
        ("machines", tag("a", str(hosts), href=visit.links.to("machines"))),
    ]
    about = f"Jobs with {listing.search} in their name" if search else "All jobs"
    unknown = None if len(digests) == len(heads) else "yes"
    now = section("Runs now", running_table(running, visit.links, running_now), id="now")
    parts = [
        tag("p", about, class_="job"),
        *_headline(heads, digests, unknown, empty=not seen),
        pairs(key, class_="key", data_unknown=unknown),
        now,
    ]
    if seen:
        form = len(seen) > _MANY or search
        known = any(each.savings.by_trial for each in digests.values())
        shown = listing.page_of(heads, JOBS_SHOWN)
        columns = _columns(visit, shown, digests, counts, _AMOUNTS[listing.chosen])
        listed = (
            listing.form("Find a job", "part of a name") if form else "",
            "" if heads else tag("p", "No job name contains this text."),
            listing.choose("Saved so far:") if known else "",
            table("Jobs", columns, shown, lambda head: head.job, heading=listing.heading),
            tag("p", _SAVED, class_="note") if known else "",
            listing.pages("More jobs", len(heads), JOBS_SHOWN),
        )
        parts.append(section("Jobs", *listed, id="jobs"))
    pending = any(digests.get(head.job, _NOTHING).changes != head.changes for head in heads)
    return document.Page("Jobs", join(parts), "Jobs", pending=pending)


def _all_runs(digests: Mapping[str, Digest]) -> list[tuple[str, str]]:
    parts = [part for digest in digests.values() for part in digest.parts]
    return headline.all_runs(build_total("all jobs", parts)) if digests else []


def _headline(
    heads: Sequence[JobHead], digests: Mapping[str, Digest], unknown: str | None, *, empty: bool
) -> tuple[Html, Html]:
    """Return what all jobs have saved, and on what that rests; ``empty``: there is no job."""
    net = _join_net([digest.net for digest in digests.values()])
    net_cost = add_estimates(digest.savings.net for digest in digests.values())
    compared = list(filter(None, (len(each.savings.by_trial) for each in digests.values())))
    if compared and net_cost is not None:
        text = net_text(net, net_cost)
        text += f" in {len(compared)} jobs" if len(compared) > 1 else ""
        told = net_cost if net.energy_j is None else net.energy_j
        good = is_good(told, *net.money.values(), net.carbon_g)
        lead = (
            "Against never optimising, which is every run with the default batch size of its job: "
            f"{plural(sum(compared), 'recurrence')}, exploring included."
        )
        alone = [each.net.energy_j for each in digests.values() if each.net.energy_j is not None]
        if len(alone) > 1 and not all(each.is_shown for each in alone):
            lead += " The sum also counts jobs for which no saving is shown alone."
    else:
        runs = sum(head.runs for head in heads)
        text, good = f"{plural(len(heads), 'job')}, {plural(runs, 'run')}", None
        lead = (
            "What choosing batch sizes saves is known once runs of several of them can be compared."
        )
        if empty:
            lead = (
                "No run has been sent here yet, or none that you may see. Connect the machine of "
                "your trainings: run `zeusrun token create --job '*' --write` on this one, and "
                "there the line that it prints, `zeusrun connect ADDRESS CODE`. From then on, "
                "`zeusrun submit` records here."
            )
    saved = coloured(units.capitalized(headline.unbroken(text)), good)
    return tag("h1", saved, class_="headline", data_unknown=unknown), tag("p", lead, class_="lead")


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


def _columns(
    visit: Visit,
    shown: Sequence[JobHead],
    digests: Mapping[str, Digest],
    running: Mapping[str, int],
    saved: Callable[[NetAmounts], str],
) -> list[Column]:
    newest = survey.read_numbers(visit.engine, [head.newest for head in shown])

    def of_run(text: Callable[[Trial], str]) -> Callable[[JobHead], str]:
        """Return what shows a text about the newest run of a job."""
        return lambda head: text(newest[head.newest]) if head.newest in newest else UNKNOWN

    def of_job(text: Callable[[Digest], str]) -> Callable[[JobHead], str]:
        """Return what shows a text about a job; a script keeps the last one until it is known."""
        return lambda head: text(digests[head.job]) if head.job in digests else _WAIT

    def runs(head: JobHead) -> str:
        now = running.get(head.job, 0)
        return f"{head.runs:,}" + (f", {now} now" if now else "")

    return [
        Column("job", lambda head: visit.links.link_job(head.job)),
        Column("saved a run", of_job(lambda e: headline.saved_share(e.savings.share, e.good))),
        Column("when", of_run(lambda trial: moment(trial.started_at))),
        Column("status", of_run(status_text), left=True),
        Column("batch size", of_run(size_label)),
        Column("runs", runs),
        Column("energy", of_job(lambda each: units.electricity(_energy_j(each)))),
        Column("saved so far", of_job(lambda each: saved(each.net))),
    ]


_WAIT = tag("span", "…", data_unknown="yes", title="being computed")


def _energy_j(digest: Digest) -> float | None:
    return sum_known(part.sums["energy_j"] for part in digest.parts)


def job_page(visit: Visit, job: str) -> document.Page:
    """Return the page of a job."""
    visit.check_job(job)
    view = visit.reports.view(job)
    if view is None:
        raise document.NotFoundError(f"There is no job called {job}.")
    running, counts = visit.running([job])
    address = visit.links.job(job)
    parts = [("now", "Runs now", running_table(running, visit.links, counts[job]))]
    if view.report is None:
        unit, head = None, join((tag("p", job, class_="job"), tag("h1", "No run has ended yet")))
    else:
        facts, first = view.report.facts, survey.read_first(visit.engine, job)
        facts = facts if first is None else replace(facts, first_at=first.started_at)
        head = join((headline.job_head(facts, "top", alone=True, moment=moment), _job_notes(view)))
        query = visit.request.query_params
        spans = document.read_listing(query, address, "recurrences", (*survey.SORTS,), _SPANS)
        report = replace(view.report, days=_DAYS[spans.chosen])
        kept = view.pictures
        if report.days is not None:
            kept = {name: drawn for name, drawn in kept.items() if name != "cost"}
        picture = document.pictures_of(report, kept)
        chosen = spans.choose("Recurrences of") if len(facts.recurrences) > 1 else Html()
        frame = Frame(picture, visit.links.link_run, moment=moment, spans=chosen)
        unit = facts.unit
        parts += job_sections(report, frame)
    schedules = [each for host in visit.hosts() for each in host.schedules if each.job == job]
    if schedules:
        parts.append(("schedule", "Schedule", schedules_table(schedules, visit.links)))
    listed, _ = runs_list(visit, address, [job], unit, most=_RUNS_SHOWN, choices=_SPANS)
    parts.append(("runs", "All runs", listed))
    sections = (section(title, body, id=place, data_key=place) for place, title, body in parts)
    titles = tuple((place, title) for place, title, _ in parts)
    return document.Page(job, join((head, *sections)), sections=titles)


def _job_notes(view: JobView) -> Html:
    notes = []
    if view.runs > NEWEST:
        notes.append(
            f"The sums count all {view.runs:,} runs; figures, comparisons and tables count the "
            f"newest {NEWEST:,}."
        )
    if not document.can_draw():
        notes.append(document.NO_FIGURES)
    return join(tag("p", note, class_="note") for note in notes)
