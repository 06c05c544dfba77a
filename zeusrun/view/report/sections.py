"""The sections of a report's page: a job's facts as HTML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.analysis.amounts import sum_known
from zeusrun.reasons import short_text
from zeusrun.view import units
from zeusrun.view.claims import claim_cost, short_share
from zeusrun.view.columns import CARBON, COST, ENERGY, LIMIT, PRICE, TIME, Column
from zeusrun.view.explain import belief_columns
from zeusrun.view.report.figures import DRAWN_RUNS, DRAWN_TRACES
from zeusrun.view.report.headline import folding, target, unbroken
from zeusrun.view.report.markup import Html, details, figure, join, table, tag
from zeusrun.view.units import UNKNOWN, noise_text, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from zeusrun.analysis.recurrences import RecurrenceFacts
    from zeusrun.view.belief import Belief
    from zeusrun.view.report.facts import JobFacts, JobReport, OverheadFacts, PowerFacts

_ROWS = 100  # largest number of rows of a table; the newest are shown
_SHOWN_FAILURES = 12  # more are folded
_LONGEST = 300  # characters of a reason
_SIZE = Column("batch size", lambda each: each.size)
_STATUS = Column("status", lambda each: each.status, left=True)
_NOISE = (
    "In samples, of the newest run of each batch size, with its range of 90 %. Dotted: a lower "
    "bound, where the gradient cannot be told from its noise. Do not use the noise scale as a "
    "batch size."
)


@dataclass(frozen=True)
class Frame:
    """What differs between a page in a file and one of a server.

    Attributes:
        picture: Returns the figure of a name for a page; ``None`` if there is nothing to draw.
        link: Returns the id of a run, as a link if the run has a page.
        moment: Returns a recorded time.
        spans: Links to a choice of the span of time of the recurrences.
    """

    picture: Callable[[str], Html | None]
    link: Callable[[str], str] = str
    moment: Callable[[str], str] = units.minute
    spans: Html = Html()  # noqa: RUF009 - it never changes


def job_sections(report: JobReport, frame: Frame) -> list[tuple[str, str, Html]]:
    """Return the name, the title and the content of each section of a job; none is empty."""
    parts = [
        ("next", "What comes next", _belief(report.belief)),
        ("recurrences", "Recurrences", _recurrences(report, frame)),
        ("arms", "Batch sizes", _arms(report, frame)),
        ("curves", "Learning curves", _curves(report, frame)),
        ("waiting", "Waiting for data", _waiting(report.facts)),
        ("failures", "Failures", _failures(report.facts, frame)),
        ("ranks", "Ranks", _ranks(report.facts, frame)),
        ("noise", "Noise scale", _folded("The noise scale of runs", _noise(report.facts, frame))),
        ("power", "Power", _folded("The power of runs", power_traces(report, frame))),
        ("overhead", "What zeusrun took", _folded("Parts of the sums", _overhead(report.facts))),
    ]
    return [part for part in parts if part[2]]


def _folded(summary: str, content: Html) -> Html:
    return details(summary, content) if content else content


def _recurrences(report: JobReport, frame: Frame) -> Html:
    facts, recent = report.facts, report.recent
    shown = recent[-_ROWS:]
    columns = [
        Column("recurrence", lambda each: str(each.recurrence)),
        *(_when(frame), _SIZE),
        Column("attempts", lambda each: str(each.attempts)),
        *(_STATUS, COST, ENERGY, TIME, _length(facts)),
        Column("saved", _saved),
        *(PRICE, CARBON),
    ]
    count = len(recent)
    which = f"{count}, the newest first"
    if len(shown) < count:
        which = f"the newest {len(shown)} of {count}"
    dots = "Every dot is a recurrence"
    if count > DRAWN_RUNS:
        dots = f"The dots are the newest {DRAWN_RUNS} recurrences, each"
    caption = f"{dots} with all its attempts, in the colour of its last batch size."
    if facts.savings.default_j is not None:
        caption += " Dashed: what a run of the default is expected to cost."
    if facts.savings.net is not None:
        caption += f" In all: {unbroken(claim_cost(facts.savings.net))}."
    caption += "".join(f" {sentence}" for sentence in _left_out(recent))
    listed = table(f"Recurrences: {which}", columns, shown[::-1])
    folded = details("Table of the recurrences", listed) if shown else listed
    return join((frame.spans, figure(frame.picture("cost"), caption, folded)))


def _left_out(recurrences: Sequence[RecurrenceFacts]) -> Iterator[str]:
    """Yield what a reader would miss in the figure of the recurrences, and why."""
    unknown = sum(each.cost_j is None for each in recurrences)
    if unknown:
        yield f"A cross at the bottom marks an unknown cost ({plural(unknown, 'recurrence')})."
    lost = [each for each in recurrences if each.saved is not None and not each.reached]
    if lost:
        took = sum_known(each.cost_j for each in lost)
        what = "saved nothing" + ("" if took is None else f", took {units.energy(took)}")
        yield f"{plural(len(lost), 'recurrence')} ended without a model: {what}."
    compared = [at for at, each in enumerate(recurrences) if each.saved is not None]
    last = recurrences[compared[-1] + 1 :] if compared else ()
    if last:
        why = "cannot be compared with the default"
        if all(each.forced for each in last):
            why = "are not compared, because their batch size was forced"
        ends = f"The line of the default and the sum end before the last {len(last)}"
        yield f"{ends}: these {why}."


def _saved(each: RecurrenceFacts) -> str:
    """Return what a recurrence saved, as a share of the default's cost; a dash if in doubt."""
    return UNKNOWN if each.saved_share is None else folding(short_share(each.saved_share))


def _when(frame: Frame) -> Column:
    return Column("when", lambda each: frame.moment(each.started_at), left=True)


def _length(facts: JobFacts) -> Column:
    """Return the column of the epochs or samples of a row."""
    return Column(facts.unit, lambda each: units.count(getattr(each, facts.unit)))


def _runs(frame: Frame) -> Column:
    return Column("run", lambda each: frame.link(each.trial))


def _curves(report: JobReport, frame: Frame) -> Html:
    facts = report.facts
    if not facts.curves:
        return Html()
    kind, taken = ("energy", units.electricity) if facts.by_energy else ("time", units.duration)
    columns = [
        *(_runs(frame), _SIZE, _STATUS),
        Column(facts.unit, lambda each: units.count(each.epochs[-1])),
        Column(kind, lambda each: taken(each.taken[-1])),
        Column(f"last {units.shortened(facts.metric)}", lambda each: f"{each.values[-1]:.4g}"),
        Column("best", lambda each: units.number(each.best, ".4g")),
    ]
    caption = (
        f"The newest runs of each batch size, at most eight. Dashed: the target, {target(facts)}."
    )
    if facts.curves_left_out:
        caption += f" {units.sentence(facts.curves_left_out)}"
    listed = table("Runs whose curves are drawn", columns, facts.curves[::-1])
    return figure(frame.picture("curves"), caption, details("Table of the curves", listed))


def _noise(facts: JobFacts, frame: Frame) -> Html:
    if not facts.noise:
        return Html()
    columns = [
        *(_runs(frame), _SIZE),
        Column(facts.unit, lambda each: units.count(round(each.at[-1], 1))),
        Column("last noise scale", lambda each: noise_text(each.points[-1])),
    ]
    listed = table("Runs whose noise scale is drawn", columns, facts.noise)
    return figure(frame.picture("noise"), _NOISE, details("Table of the noise scales", listed))


def _ranks(facts: JobFacts, frame: Frame) -> Html:
    if not facts.ranks:
        return Html()
    rows = [
        (run.trial, change, rate)
        for run in facts.ranks[::-1]
        for change, rate in zip(run.changes, run.rates, strict=True)
    ]
    columns = [
        Column("run", lambda row: frame.link(row[0])),
        Column("ranks", lambda row: str(row[1].world_size)),
        Column("from step", lambda row: units.count(row[1].step)),
        Column("took", lambda row: _short(row[1].took_s)),
        Column("others paused", lambda row: _short(row[1].paused_s)),
        Column("samples a second", lambda row: units.number(row[2], ".4g")),
    ]
    caption = (
        "The newest runs that changed their ranks. The throughput is the mean with each number of "
        "ranks, evaluations and pauses included."
    )
    listed = table("Changes of the ranks", columns, rows[:_ROWS])
    return figure(frame.picture("ranks"), caption, details("Table of the ranks", listed))


def _short(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else short_text(seconds)


def _arms(report: JobReport, frame: Frame) -> Html:
    facts = report.facts
    columns = [
        Column("batch size", lambda e: f"{e.label} (default)" if e.default else e.label),
        Column("reached", lambda each: f"{each.reached} of {each.runs}"),
        Column("share", lambda each: units.percent(each.share)),
        Column("median cost", COST.value),
        Column("range", lambda each: units.energy_range(_ends(each.costs_j))),
        *(ENERGY, TIME, _length(facts), LIMIT),
    ]
    many = any(max(len(size.costs_j), len(size.failed_j)) > DRAWN_RUNS for size in facts.sizes)
    dots = f"The newest {DRAWN_RUNS} runs of each batch size are dots" if many else ""
    dots = dots or "Every run whose cost can be compared is a dot"
    caption = f"{dots}; the line is the median of those that reached the target."
    if any(size.cleaned for size in facts.sizes):
        caption += " Interruptions, and other than the best loader workers, are not counted."
    if facts.left_out:
        listed = "; ".join(f"{why} ({plural(count, 'run')})" for why, count in facts.left_out)
        caption += f" Left out, because their cost cannot be compared: {listed}."
    title = "Batch sizes: medians of the runs that reached the target"
    return figure(frame.picture("arms"), caption, table(title, columns, facts.sizes))


def _ends(values: Sequence[float]) -> tuple[float, float] | None:
    return (min(values), max(values)) if values else None


def _belief(belief: Belief) -> Html:
    if belief.missing:
        return tag("p", belief.missing)
    title = f"What policy {belief.policy} expects of the next run"
    listed = table(title, belief_columns(belief.unit), belief.arms)
    if not belief.sentences:
        return listed
    first, *others = belief.sentences
    text = tag("p", tag("strong", f"{units.sentence(first)} "), " ".join(others))
    verdicts = [
        tag("li", tag("strong", f"{arm.global_batch_size}: "), arm.verdict)
        for arm in belief.arms
        if not arm.is_next
    ]
    list_ = tag("ul", *verdicts, class_="plain") if verdicts else ""
    return join((tag("div", text, class_="next"), list_, listed))


def power_traces(report: JobReport, frame: Frame) -> Html:
    """Return the power over time of the newest runs; nothing if none is known."""
    power = report.power
    if not power:
        return Html()
    columns = [
        *(_runs(frame), _SIZE),
        Column("devices", lambda each: str(each.trace.devices)),
        Column("mean in training", lambda each: units.power(each.mean_w)),
        Column("highest, with start-up", lambda each: units.power(each.highest_w)),
        Column("limit", lambda each: units.power(each.limit_w)),
        Column("throttled", _throttled, left=True),
    ]
    newest = f"the newest {plural(min(DRAWN_TRACES, len(power)), 'run')}"
    newest = power[0].trial if len(power) == 1 else newest
    caption = (
        f"Of {newest}, summed over the devices: mean, and range of the "
        "readings. Dashed: the power limit. Bars at the bottom: a device was throttled."
    )
    if not all(each.trace.whole for each in power):
        caption += " Long runs are sampled."
    title = f"Power of {plural(len(power), 'run')}, the newest first"
    listed = details("Table of the power traces", table(title, columns, power[::-1]))
    return figure(frame.picture("power"), caption, listed)


def _throttled(power: PowerFacts) -> str:
    return ", ".join(f"{word} {units.percent(share)}" for word, share in power.throttled) or "no"


def _failures(facts: JobFacts, frame: Frame) -> Html:
    failures = facts.failures
    if not failures:
        return tag("p", "Every run has reached its target.") if facts.reached else Html()
    why = Column("why", lambda e: units.shortened(e.reason, _LONGEST) or UNKNOWN, left=True)
    columns = [_runs(frame), _when(frame), _SIZE, _STATUS, why, COST]
    rows = failures[-_ROWS:]
    text = f"{len(failures)} of {plural(facts.total.runs, 'run')} did not reach the target"
    if len(rows) < len(failures):
        text += f"; below are the newest {len(rows)}"
    if any(each.status == "CANCELLED" for each in facts.recurrences):
        text += "; those that were cancelled are left out"
    title = "Runs that did not reach the target, the newest first"
    listed = table(title, columns, rows[::-1])
    folded = details("Table of the failures", listed) if len(rows) > _SHOWN_FAILURES else listed
    return join((tag("p", f"{text}."), folded))


def _waiting(facts: JobFacts) -> Html:
    return Html() if facts.waiting is None else tag("p", f"In the newest run, {facts.waiting}.")


def _overhead(facts: JobFacts) -> Html:
    if not facts.overhead:
        return Html()
    all_j = facts.total.cost_j

    def share(row: OverheadFacts) -> str:
        return units.percent(row.cost_j / all_j if row.cost_j is not None and all_j else None)

    columns = [
        Column("what", lambda each: each.name),
        Column("runs", lambda each: str(each.count)),
        *(TIME, ENERGY, COST),
        Column("of all costs", share),
    ]
    text = (
        "The sums above count each run from its first step to its target, else to its last step "
        "or report. The energy of start-up is not recorded, and what follows is in no sum; the "
        "other rows are parts of the sums."
    )
    return join((tag("p", text), table("What zeusrun took", columns, facts.overhead)))
