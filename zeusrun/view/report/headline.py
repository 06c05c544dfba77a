"""The head of a report: what a job has saved, on what that rests, and the sums of its runs."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from zeusrun.target import describe_target
from zeusrun.view import claims, units
from zeusrun.view.columns import COST, ENERGY, TIME, Column
from zeusrun.view.report.markup import Html, cell, coloured, join, pairs, table, tag
from zeusrun.view.units import UNKNOWN, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.analysis.amounts import Total
    from zeusrun.analysis.estimates import Estimate, NetAmounts
    from zeusrun.analysis.recurrences import SizeFacts
    from zeusrun.trial import Trial
    from zeusrun.view.report.facts import JobFacts, JobReport

_DETAILED_JOBS = 10
_ALL_JOBS = "All jobs; cost, energy and time: medians of the usual batch size"
_NO_BREAK = "\N{NO-BREAK SPACE}"
_UNIT = re.compile(r"(?<=\d) (?=%|[A-Z]{3}\b|[kMGT]?(?:Wh|J|g)\b|k?t\b)")


def target(facts: JobFacts | Trial) -> str:
    """Return the target of a job: ``val_accuracy ≥ 0.98``."""
    return f"{units.shortened(facts.metric, 80)} {goal(facts)}"


def goal(what: JobFacts | Trial) -> str:
    """Return what the metric of a job must be, unbroken: ``≥ 0.98``."""
    return describe_target(what.target, what.mode).replace(" ", "\N{NO-BREAK SPACE}")


def unbroken(claim: str) -> str:
    """Keep each number on the line of its unit."""
    return _UNIT.sub(_NO_BREAK, claim)


def folding(text: str) -> str:
    """Return an amount for a cell that breaks only before its range."""
    if text in {"", UNKNOWN}:
        return text
    whole = text.replace(" ", _NO_BREAK).replace(f"{_NO_BREAK}(", " (")
    return tag("span", whole.replace(f",{_NO_BREAK}", ", "), class_="folds")


def headline(facts: JobFacts) -> tuple[str, bool | None]:
    """Return what a job saves, in a few words, and whether that is good; ``None``: neither is sure.

    A saving is not called good while the sum of cost or energy below it is a loss.
    """
    savings = facts.savings
    share = savings.share
    if share is None:
        return _without_saving(facts), None
    if savings.in_use == savings.default:
        return f"uses {facts.against}, the default", None
    text = claims.claim_in_use(savings) or ""
    return unbroken(text), claims.is_good(share, savings.net, facts.net.energy_j)


def _without_saving(facts: JobFacts) -> str:
    if not facts.reached:
        return "has not reached its target yet"
    if not facts.taught:
        return "has not trained with the batch size that it was to have"
    if facts.total.cost_j is None:
        return "has no known cost yet"
    if not facts.savings.explored and len(facts.sizes) < 2:
        return f"has used {facts.against} only, so nothing is saved yet"
    return "what it saves is not known yet"


def basis(facts: JobFacts) -> str:
    """Return on what the headline rests."""
    savings = facts.savings
    if savings.net is None:
        if facts.reached and facts.total.cost_j is None:
            return "The energy of its runs is unknown, and so is what they cost."
        if savings.note is not None:
            return units.sentence(savings.note)
        so_far = plural(len(facts.recurrences), "recurrence")
        return f"{so_far} so far; target {target(facts)}."
    count = len(savings.by_trial)
    runs, since = plural(count, "recurrence"), ""
    if savings.since is not None:
        since = f" since {units.moment(savings.since, '%B %Y')}"
    shown = plural(savings.default_runs, "run")
    sentences = [
        f"{runs}{since}, exploring included: {claims.net_text(facts.net, savings.net)}.",
        f"The cost of the default is known from {shown}.",
    ]
    energy, cost = claims.is_good(facts.net.energy_j), claims.is_good(savings.net)
    differ = facts.net.energy_j is not None and cost is not None and energy is not cost
    if differ and facts.eta_knob < 1:
        sentences.append(
            f"By the cost, which also counts time (eta_knob {facts.eta_knob:g}), they "
            f"{claims.claim_cost(savings.net)}."
        )
    if cost is False:
        pays = savings.pays_back_in
        back = "" if pays is None else f"; it pays back in about {plural(pays, 'more recurrence')}"
        sentences.append(f"Exploring has cost more than it has saved so far{back}.")
    net = facts.net
    counts = {"energy": net.energy_runs, "price": net.money_runs, "carbon": net.carbon_runs}
    fewer = [f"the {name} is known for {n}" for name, n in counts.items() if 0 < n < count]
    if fewer:
        sentences.append(f"Of these {runs}, {' and '.join(fewer)}.")
    return " ".join(sentences)


def detailed(reports: Sequence[JobReport]) -> list[int]:
    """Return which jobs a page shows in detail: those that ran last."""
    newest = sorted(range(len(reports)), key=lambda n: reports[n].facts.last_at)
    return sorted(newest[-_DETAILED_JOBS:])


def overview(reports: Sequence[JobReport]) -> Html:
    """Return what comes first on a page of several jobs: a line for each, with a link."""
    shown = detailed(reports)
    places = {reports[number].facts.job: f"#j{number}-top" for number in shown}
    columns = [
        Column("job", lambda each: tag("a", each.job, href=places.get(each.job))),
        *(Column(each.name, _usual(each)) for each in (COST, ENERGY, TIME)),
        Column("saved a run", lambda each: saved_share(each.savings.share, headline(each)[1])),
        Column("energy saved", lambda each: energy_saved(each.net)),
        Column("money saved", lambda each: money_saved(each.net)),
        Column("CO2e saved", lambda each: carbon_saved(each.net)),
    ]
    runs = sum(report.facts.total.runs for report in reports)
    title = f"{plural(len(reports), 'job')}, {plural(runs, 'run')}"
    rest = ""
    if len(shown) < len(reports):
        rest = tag(
            "p",
            f"Below are the {len(shown)} jobs that ran last. `zeusrun report JOB` writes the page "
            "of another one.",
            class_="note",
        )
    return join(
        (tag("h1", title), rest, table(_ALL_JOBS, columns, [report.facts for report in reports]))
    )


def usual_size(facts: JobFacts) -> SizeFacts:
    """Return the batch size that has reached the target most often."""
    return max(facts.sizes, key=lambda size: size.reached)


def _usual(column: Column) -> Callable[[JobFacts], str]:
    """Return a function that shows a median of the usual batch size of a job."""
    return lambda facts: cell(column.value(usual_size(facts)))


def saved_share(share: Estimate | None, good: bool | None) -> str:
    """Return what a run saves, with its range, for a cell; ``good``: see ``headline``."""
    return UNKNOWN if share is None else coloured(folding(claims.cell_share(share)), good)


def energy_saved(net: NetAmounts) -> str:
    """Return the energy that was saved, with its range, for a cell of a table."""
    return folding(claims.short_amount(net.energy_j, units.electricity))


def money_saved(net: NetAmounts) -> str:
    """Return the money that was saved, in each currency, with its range, for a cell of a table."""
    sums = [
        claims.short_amount(amount, functools.partial(units.money, currency=currency))
        for currency, amount in net.money.items()
    ]
    return folding(", ".join(sums) or UNKNOWN)


def carbon_saved(net: NetAmounts) -> str:
    """Return the carbon that was saved, likewise."""
    return folding(claims.short_amount(net.carbon_g, units.carbon))


def job_head(
    facts: JobFacts, place: str, *, alone: bool, moment: Callable[[str, str], str] = units.moment
) -> Html:
    """Return what stands above the sections of a job: its name, a headline, sums, remarks.

    Args:
        facts: Of the job.
        place: The id of its name.
        alone: Whether it is the only job of the page.
        moment: Returns a recorded time in a form.
    """
    text, good = headline(facts)
    job = tag("p", facts.job, class_="job", id=place)
    title = tag("h1" if alone else "h2", coloured(units.capitalized(text), good), class_="headline")
    form = "%Y-%m-%d"
    ends = {units.moment(at, form): moment(at, form) for at in (facts.first_at, facts.last_at)}
    days = [tag("span", day, class_="date") for day in ends.values()]
    values = [
        *all_runs(facts.total),
        ("runs", f"{facts.total.runs}, {facts.reached} reached the target"),
        ("target", target(facts)),
        ("on" if len(days) == 1 else "from", Html(" to ".join(days))),
        ("hardware", facts.hardware),
        ("weight of energy", f"eta_knob {facts.eta_knob:g}"),
    ]
    remarks = [tag("p", units.sentence(text), class_="note") for text in facts.remarks]
    lead = tag("p", basis(facts), class_="lead")
    return join((job, title, lead, pairs(values, class_="key"), *remarks))


def all_runs(total: Total) -> list[tuple[str, str]]:
    """Return what all runs took; "at least", and of how many, if that of a run is unknown."""

    def sum_(name: str, text: str) -> tuple[str, str]:
        if unknown := total.unknown[name]:
            # A run has one currency, so the number of each of several is not known here.
            known = "some" if len(total.prices) > 1 and name == "price" else total.runs - unknown
            text = f"at least {text}, known for {known} of {plural(total.runs, 'run')}"
        return f"{name} of all runs", text

    rows = [("energy of all runs", UNKNOWN)]
    if total.energy_j is not None:
        how = estimated_part(total)
        rows = [sum_("energy", units.electricity(total.energy_j) + (how and f", {how}"))]
    rows += [sum_("price", units.money(price, name)) for name, price in total.prices.items()]
    if total.carbon_g is not None:
        rows.append(sum_("carbon", f"{units.carbon(total.carbon_g)} CO2e"))
    return rows


def estimated_part(total: Total) -> str:
    """Return how far the energy of all runs is an estimate: "", "partly estimated", "estimated"."""
    if not total.estimated_j or total.energy_j is None:
        return ""
    return "partly estimated" if total.estimated_j < total.energy_j else "estimated"
