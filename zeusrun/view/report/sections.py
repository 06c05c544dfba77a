"""The sections of a report's page: a job's facts as HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.view import units
from zeusrun.view.report import charts
from zeusrun.view.report.markup import Html, details, figure, join, table, tag
from zeusrun.view.report.power_section import power_section
from zeusrun.view.report.words import (
    basis,
    carbon,
    day,
    headline,
    kwh,
    moment,
    money,
    percent,
    target,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.view.report.facts import JobFacts, RecurrenceFacts
    from zeusrun.view.report.job_report import Belief, JobReport

MOST_ROWS = 200
MOST_FAILURES = 100
_LONGEST = 300  # characters of a reason
_UNKNOWN = units.UNKNOWN


def job_sections(
    report: JobReport, prefix: str, *, alone: bool
) -> tuple[Html, list[tuple[str, str]]]:
    """Return a job's part of the page, and the id and the name of each section.

    Args:
        report: The job.
        prefix: Begins every id.
        alone: Whether it is the only job of the page.
    """
    facts, level = report.facts, "h2" if alone else "h3"
    parts = [
        ("recurrences", "Recurrences", _recurrences(facts, prefix)),
        ("curves", "Learning curves", _curves(facts, prefix)),
        ("arms", "Batch sizes", _arms(facts, prefix)),
        ("next", "What comes next", _belief(report.belief)),
        ("power", "Power", power_section(report, prefix)),
        ("failures", "Failures", _failures(facts)),
        ("overhead", "What zeusrun took", _overhead(facts)),
    ]
    shown = [(f"{prefix}-{name}", title, content) for name, title, content in parts if content]
    sections = [
        tag("section", tag(level, title), content, id=place) for place, title, content in shown
    ]
    head = _head(facts, prefix, alone=alone)
    return join((head, *sections)), [(place, title) for place, title, _ in shown]


def overview(reports: Sequence[JobReport]) -> Html:
    """Return what comes first on a page of several jobs: a line for each, with a link."""
    runs = sum(report.facts.runs for report in reports)
    priced = any(report.facts.net.money for report in reports)
    emitted = any(report.facts.net.carbon_g is not None for report in reports)
    heads = ["job", "runs", "its batch sizes", "net energy saved", *(["money"] if priced else [])]
    heads += ["carbon"] if emitted else []
    rows = []
    for number, report in enumerate(reports):
        facts, net = report.facts, report.facts.net
        amounts = [money(sum_, name) for name, sum_ in net.money.items()]
        rows.append(
            [
                tag("a", facts.job, href=f"#j{number}-top"),
                str(facts.runs),
                headline(facts)[0],
                kwh(net.energy_j),
                *([", ".join(amounts) or _UNKNOWN] if priced else []),
                *([carbon(net.carbon_g)] if emitted else []),
            ]
        )
    title = f"{units.plural(len(reports), 'job')}, {units.plural(runs, 'run')}"
    return join((tag("h1", title), table("All jobs", heads, rows, texts=(0, 2))))


def _head(facts: JobFacts, prefix: str, *, alone: bool) -> Html:
    text, good = headline(facts)
    mood = {True: "good", False: "bad", None: None}[good]
    job = tag("p", facts.job, class_="job", id=f"{prefix}-top")
    title = tag("h1" if alone else "h2", tag("span", text, class_=mood), class_="headline")
    values = [
        ("energy of all runs", _energy(facts)),
        *(("price of all runs", money(sum_, name)) for name, sum_ in facts.money.items()),
        *([("carbon of all runs", carbon(facts.carbon_g))] if facts.carbon_g is not None else []),
        ("runs", f"{facts.runs}, {facts.reached} reached the target"),
        ("target", target(facts)),
        ("from", f"{day(facts.first_at)} to {day(facts.last_at)}"),
        ("hardware", facts.hardware),
        ("weight of energy", f"eta_knob {facts.eta_knob:g}"),
    ]
    key = tag(
        "dl", *(tag("div", tag("dt", name), tag("dd", v)) for name, v in values), class_="key"
    )
    remarks = [tag("p", f"{text[:1].upper()}{text[1:]}.", class_="note") for text in facts.remarks]
    return join((job, title, tag("p", basis(facts), class_="lead"), key, *remarks))


def _energy(facts: JobFacts) -> str:
    estimated = ", estimated" if "estimated" in facts.energy_sources else ""
    least = "at least " if facts.unmeasured and facts.energy_j is not None else ""
    return f"{least}{kwh(facts.energy_j)}{estimated}"


def _recurrences(facts: JobFacts, prefix: str) -> Html:
    shown = facts.recurrences[-MOST_ROWS:]
    priced = any(each.price is not None for each in shown)
    emitted = any(each.carbon_g is not None for each in shown)
    heads = ["recurrence", "when", "batch size", "attempts", "status", "cost", "energy", "time"]
    heads += ["epochs", "saved", *(["price"] if priced else []), *(["carbon"] if emitted else [])]
    rows = [_recurrence(each, facts, priced=priced, emitted=emitted) for each in reversed(shown)]
    count = len(facts.recurrences)
    newest = (
        f"the newest {len(shown)} of {count}; `--format json` has all"
        if len(shown) < count
        else f"{count}, the newest first"
    )
    label = (
        f"Cost of {units.plural(count, 'recurrence')} of {facts.job} by batch size, with the cost "
        "of the default and what has been saved so far. The table below has the numbers."
    )
    caption = (
        "Every dot is a recurrence with all its attempts, in the colour of its last batch size."
    )
    if any(each.default_j is not None for each in facts.recurrences):
        caption += (
            f" Dashed: the mean of the comparable runs of the default, batch size {facts.default}."
        )
    listed = details(
        "Table of the recurrences", table(f"Recurrences: {newest}", heads, rows, texts=(0, 1, 4))
    )
    return figure(
        "cost of the recurrences", charts.inline("cost", facts, (), prefix, label), caption, listed
    )


def _recurrence(
    each: RecurrenceFacts, facts: JobFacts, *, priced: bool, emitted: bool
) -> list[str]:
    return [
        str(each.recurrence),
        moment(each.started_at),
        facts.sizes[each.size].label,
        str(each.attempts),
        each.status,
        units.energy(each.cost_j),
        units.energy(each.energy_j),
        units.duration(each.time_s),
        units.number(each.epochs),
        percent(each.saved_share),
        *([money(each.price, each.currency)] if priced else []),
        *([carbon(each.carbon_g)] if emitted else []),
    ]


def _curves(facts: JobFacts, prefix: str) -> Html:
    if not facts.curves:
        return Html()
    kind = "energy" if facts.by_energy else "time"
    heads = ["run", "batch size", "status", "epochs", kind, f"last {facts.metric}", "best"]
    rows = [
        [
            each.trial,
            facts.sizes[each.size].label,
            each.status,
            f"{each.epochs[-1]:g}",
            units.energy(each.taken[-1]) if facts.by_energy else units.duration(each.taken[-1]),
            f"{each.values[-1]:.4g}",
            units.number(each.best, ".4g"),
        ]
        for each in reversed(facts.curves)
    ]
    label = (
        f"Learning curves of {len(rows)} runs by batch size, against epochs and {kind}, with the "
        f"target {facts.target:g}."
    )
    caption = (
        f"The newest runs of each batch size, at most eight. Dashed: the target, {target(facts)}."
    )
    listed = details(
        "Table of the curves", table("Runs whose curves are drawn", heads, rows, texts=(0, 2))
    )
    return figure(
        "learning curves", charts.inline("curves", facts, (), prefix, label), caption, listed
    )


def _arms(facts: JobFacts, prefix: str) -> Html:
    scaled = any(size.noise_scale is not None for size in facts.sizes)
    limited = any(size.power_limit_w is not None for size in facts.sizes)
    heads = ["batch size", "reached", "share", "median cost", "range"]
    heads += [
        "energy",
        "time",
        "epochs",
        *(["limit"] if limited else []),
        *(["noise scale"] if scaled else []),
    ]
    rows = []
    for size in facts.sizes:
        costs = size.costs_j
        rows.append(
            [
                f"{size.label} (default)" if size.default else size.label,
                f"{size.reached} of {size.runs}",
                percent(size.share),
                units.energy(size.cost_j),
                units.energy_range((min(costs), max(costs))) if costs else _UNKNOWN,
                units.energy(size.energy_j),
                units.duration(size.time_s),
                units.number(size.epochs, "g"),
                *([units.power(size.power_limit_w)] if limited else []),
                *([units.number(size.noise_scale, ".3g")] if scaled else []),
            ]
        )
    label = (
        f"Costs of the runs of {units.plural(len(rows), 'batch size')}, their medians, and the "
        "share of the runs that each has had."
    )
    caption = "Every run is a dot; the line is the median of those that reached the target."
    if facts.left_out:
        other = units.plural(facts.left_out, "run")
        caption += f" {other} with another objective or on other hardware left out."
    listed = table("Batch sizes: medians of the runs that reached the target", heads, rows)
    return figure(
        "costs by batch size", charts.inline("arms", facts, (), prefix, label), caption, listed
    )


def _belief(belief: Belief) -> Html:
    if not belief.arms:
        return tag("p", belief.missing) if belief.missing else Html()
    likely = max(belief.arms, key=lambda arm: arm.chance)
    verdict = likely.verdict.removeprefix("next: ")
    heads = ["batch size", "reached", "epochs", "cost", "90 % range", "risk", "next"]
    rows = [
        [
            str(arm.global_batch_size),
            f"{arm.reached} of {arm.trials}" if arm.trials else _UNKNOWN,
            units.number(arm.epochs, ".1f"),
            units.energy(arm.cost_j),
            units.energy_range(arm.cost_range_j),
            percent(arm.failure_chance),
            percent(arm.chance),
        ]
        for arm in belief.arms
    ]
    sure = "uses" if likely.chance > 0.99 else "most likely uses"
    said = tag(
        "p",
        tag("strong", f"The next run {sure} batch size {likely.global_batch_size}. "),
        f"{verdict[:1].upper()}{verdict[1:]}.",
        class_="next",
    )
    others = [
        tag("li", tag("strong", f"{arm.global_batch_size}: "), arm.verdict)
        for arm in belief.arms
        if arm is not likely
    ]
    listed = table(f"What policy {belief.policy} expects of the next run", heads, rows)
    return join((said, tag("ul", *others, class_="plain") if others else "", listed))


def _failures(facts: JobFacts) -> Html:
    if not facts.failures:
        return tag("p", "Every run has reached its target.")
    shown = facts.failures[-MOST_FAILURES:]
    rows = [
        [
            each.trial,
            moment(each.started_at),
            each.label,
            each.status,
            units.shortened(each.reason, _LONGEST) or _UNKNOWN,
            units.energy(each.cost_j),
        ]
        for each in reversed(shown)
    ]
    newest = (
        f", the newest {len(shown)}; `--format json` has all"
        if len(shown) < len(facts.failures)
        else ""
    )
    count = f"{len(facts.failures)} of {units.plural(facts.runs, 'run')}"
    said = f"{count} did not reach the target{newest}."
    heads = ["run", "when", "batch size", "status", "why", "cost"]
    listed = table(
        "Runs that did not reach the target, the newest first", heads, rows, texts=(0, 1, 3, 4)
    )
    return join(
        (tag("p", said), details("Table of the failures", listed) if len(rows) > 12 else listed)
    )


def _overhead(facts: JobFacts) -> Html:
    rows = [
        [
            each.name,
            str(each.count),
            units.duration(each.time_s),
            units.energy(each.energy_j),
            units.energy(each.cost_j),
            percent(each.cost_j / facts.total_cost_j)
            if each.cost_j is not None and facts.total_cost_j
            else _UNKNOWN,
        ]
        for each in facts.overhead
    ]
    if not rows:
        return Html()
    heads = ["what", "runs", "time", "energy", "cost", "of all costs"]
    said = (
        "These are part of the sums above. Start-up comes before the first step, and is in no cost."
    )
    return join((tag("p", said), table("What zeusrun took", heads, rows)))
