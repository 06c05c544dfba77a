"""The sections of a report's page: a job's facts as HTML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.view import units
from zeusrun.view.columns import CARBON, COST, ENERGY, PRICE, TIME, cells
from zeusrun.view.report.canvas import STAND_INS
from zeusrun.view.report.figures import DRAWN_RUNS, DRAWN_TRACES
from zeusrun.view.report.headline import capitalized, percent, target
from zeusrun.view.report.markup import Html, details, figure, join, table, tag
from zeusrun.view.units import UNKNOWN, noise_text, plural

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.view.report.facts import Belief, JobFacts, JobReport, PowerFacts

_SHOWN_FAILURES = 12  # more are folded
_MOST_STALLS = 20
_LONGEST = 300  # characters of a reason, or of what was seen of a stall
_SPARK_POINTS = 60
_NOISE = (
    "In samples, of the newest run of each batch size, with its range of 90 %. Dotted: a lower "
    "bound, where the gradient cannot be told from its noise. The noise scale is no batch size to "
    "choose."
)


@dataclass(frozen=True)
class Frame:
    """What differs between a page in a file and one of a server.

    Attributes:
        picture: Returns the figure of a name for a page, with a label for people who do not see
            it; ``None`` if there is nothing to draw.
        link: Returns the id of a run, as a link if the run has a page.
        rows: How many recurrences a table has at most.
        failures: How many failures a table has at most.
        rest: Where the others are.
    """

    picture: Callable[[str, str], Html | None]
    link: Callable[[str], str] = str
    rows: int = 200
    failures: int = 100
    rest: str = "`--format json` has all"


def job_sections(report: JobReport, frame: Frame) -> list[tuple[str, str, Html]]:
    """Return the name, the title and the content of each section of a job; none is empty."""
    parts = [
        ("recurrences", "Recurrences", _recurrences(report, frame)),
        ("curves", "Learning curves", _curves(report, frame)),
        ("noise", "Noise scale", _noise(report.facts, frame)),
        ("arms", "Batch sizes", _arms(report, frame)),
        ("next", "What comes next", _belief(report.belief)),
        ("power", "Power", join((power_traces(report, frame), _stalls(report.facts)))),
        ("failures", "Failures", _failures(report.facts, frame)),
        ("overhead", "What zeusrun took", _overhead(report.facts)),
    ]
    return [part for part in parts if part[2]]


def _recurrences(report: JobReport, frame: Frame) -> Html:
    facts, shown = report.facts, report.facts.recurrences[-frame.rows :]
    rows = [
        {
            "recurrence": str(each.recurrence),
            "when": units.minute(each.started_at),
            "batch size": each.size,
            "attempts": str(each.attempts),
            "status": each.status,
            **cells(each, COST, ENERGY, TIME),
            facts.unit: units.count(getattr(each, facts.unit)),
            "saved": percent(each.saved_share),
            **cells(each, PRICE, CARBON),
        }
        for each in reversed(shown)
    ]
    count = len(facts.recurrences)
    which = f"{count}, the newest first"
    if len(shown) < count:
        which = f"the newest {len(shown)} of {count}; {frame.rest}"
    label = (
        f"Cost of {plural(count, 'recurrence')} of {facts.job} by batch size, with the cost "
        "of the default and what has been saved so far. The table below has the numbers."
    )
    dots = "Every dot is a recurrence"
    if count > DRAWN_RUNS:
        dots = f"The dots are the newest {DRAWN_RUNS} recurrences, each"
    caption = f"{dots} with all its attempts, in the colour of its last batch size."
    if facts.savings.default_j is not None:
        caption += " Dashed: what a run of the default is expected to cost."
    listed = table(f"Recurrences: {which}", rows)
    folded = details("Table of the recurrences", listed) if rows else listed
    return figure(frame.picture("cost", label), caption, folded)


def _curves(report: JobReport, frame: Frame) -> Html:
    facts = report.facts
    if not facts.curves:
        return Html()
    kind, taken = ("energy", units.energy) if facts.by_energy else ("time", units.duration)
    rows = [
        {
            "run": frame.link(each.trial),
            "batch size": each.size,
            "status": each.status,
            facts.unit: units.count(each.epochs[-1]),
            kind: taken(each.taken[-1]),
            f"last {units.shortened(facts.metric)}": f"{each.values[-1]:.4g}",
            "best": units.number(each.best, ".4g"),
        }
        for each in reversed(facts.curves)
    ]
    label = (
        f"Learning curves of {plural(len(rows), 'run')} by batch size, against {facts.unit} and "
        f"{kind}, with the target {facts.target:g}."
    )
    caption = (
        f"The newest runs of each batch size, at most eight. Dashed: the target, {target(facts)}."
    )
    if facts.curves_left_out:
        caption += f" {capitalized(facts.curves_left_out)}."
    listed = details("Table of the curves", table("Runs whose curves are drawn", rows))
    return figure(frame.picture("curves", label), caption, listed)


def _noise(facts: JobFacts, frame: Frame) -> Html:
    if not facts.noise:
        return Html()
    rows = [
        {
            "run": frame.link(each.trial),
            "batch size": each.size,
            facts.unit: units.count(round(each.at[-1], 1)),
            "last noise scale": noise_text(each.points[-1]),
        }
        for each in facts.noise
    ]
    label = f"Gradient noise scale of {plural(len(rows), 'run')}, against {facts.unit}."
    listed = details("Table of the noise scales", table("Runs whose noise scale is drawn", rows))
    return figure(frame.picture("noise", label), _NOISE, listed)


def _arms(report: JobReport, frame: Frame) -> Html:
    facts = report.facts
    rows = [
        {
            "batch size": f"{size.label} (default)" if size.default else size.label,
            "reached": f"{size.reached} of {size.runs}",
            "share": percent(size.share),
            "median cost": units.energy(size.cost_j),
            "range": units.energy_range(
                (min(size.costs_j), max(size.costs_j)) if size.costs_j else None
            ),
            **cells(size, ENERGY, TIME),
            facts.unit: units.count(getattr(size, facts.unit)),
            "limit": units.power(size.power_limit_w),
        }
        for size in facts.sizes
    ]
    label = (
        f"Costs of the runs of {plural(len(rows), 'batch size')}, their medians, and the "
        "share of the runs that each has had."
    )
    many = any(max(len(size.costs_j), len(size.failed_j)) > DRAWN_RUNS for size in facts.sizes)
    dots = f"The newest {DRAWN_RUNS} runs of each batch size are dots" if many else ""
    dots = dots or "Every run is a dot"
    caption = f"{dots}; the line is the median of those that reached the target."
    if facts.left_out:
        caption += (
            f" {plural(facts.left_out, 'run')} left out: forgotten, with another objective, "
            "or on other hardware."
        )
    listed = table("Batch sizes: medians of the runs that reached the target", rows)
    return figure(frame.picture("arms", label), caption, listed)


def _belief(belief: Belief) -> Html:
    if belief.missing:
        return tag("p", belief.missing)
    rows = [
        {
            "batch size": str(arm.global_batch_size),
            "reached": f"{arm.reached} of {arm.trials}" if arm.trials else UNKNOWN,
            belief.unit: units.number(arm.epochs, ".1f" if belief.unit == "epochs" else ",.0f"),
            "cost": units.energy(arm.cost_j),
            "90 % range": units.energy_range(arm.cost_range_j),
            "risk": percent(arm.failure_chance),
            "next": percent(arm.chance),
        }
        for arm in belief.arms
    ]
    listed = table(f"What policy {belief.policy} expects of the next run", rows)
    if not belief.sentences:
        return listed
    first, *others = belief.sentences
    text = tag("p", tag("strong", f"{first[:1].upper()}{first[1:]}. "), " ".join(others))
    verdicts = [
        tag("li", tag("strong", f"{arm.global_batch_size}: "), arm.verdict)
        for arm in belief.arms
        if not arm.is_next
    ]
    list_ = tag("ul", *verdicts, class_="plain") if verdicts else ""
    return join((tag("div", text, class_="next"), list_, listed))


def power_traces(report: JobReport, frame: Frame) -> Html:
    """Return the power over time of the newest runs; nothing if none is known."""
    facts, power = report.facts, report.power
    if not power:
        return Html()
    rows = [
        {
            "run": frame.link(each.trial),
            "batch size": each.size,
            "devices": str(each.trace.devices),
            "power over time": _spark(each, facts),
            "mean in training": units.power(each.mean_w),
            "highest, with start-up": units.power(each.highest_w),
            "limit": units.power(each.limit_w),
            "throttled": ", ".join(f"{word} {percent(share)}" for word, share in each.throttled)
            or "no",
        }
        for each in reversed(power)
    ]
    newest = f"the newest {plural(min(DRAWN_TRACES, len(power)), 'run')}"
    newest = power[0].trial if len(power) == 1 else newest
    label = (
        f"Power of {newest} over time, summed over the devices, "
        "with the power limit and the times of throttling."
    )
    caption = (
        f"Of {newest}, summed over the devices: mean, and range of the "
        "readings. Dashed: the power limit. Bars at the bottom: a device was throttled."
    )
    if not all(each.trace.whole for each in power):
        caption += " Long runs are sampled."
    title = f"Power of {plural(len(power), 'run')}, the newest first"
    listed = details("Table of the power traces", table(title, rows))
    return figure(frame.picture("power", label), caption, listed)


def _spark(power: PowerFacts, facts: JobFacts) -> Html:
    """Return the range of a trace as a tiny figure; the numbers stand beside it."""
    spans = power.trace.spans[:: max(1, len(power.trace.spans) // _SPARK_POINTS)]
    end = spans[-1].time_s or 1.0
    top = max(power.highest_w, power.limit_w or 0.0) or 1.0
    over = [f"{120 * span.time_s / end:.0f} {24 - 23 * span.high_w / top:.1f}" for span in spans]
    under = [f"{120 * span.time_s / end:.0f} {24 - 23 * span.low_w / top:.1f}" for span in spans]
    labels = [size.label for size in facts.sizes]
    colour = STAND_INS.sizes.index(STAND_INS.size(labels.index(power.size), len(labels)))
    return Html(
        '<svg viewBox="0 0 120 24" preserveAspectRatio="none" aria-hidden="true">'
        f'<path d="M{"L".join([*over, *reversed(under)])}Z" '
        f'class="s{colour}"/></svg>'
    )


def _stalls(facts: JobFacts) -> Html:
    if not facts.stalls:
        return Html()
    count, shown = plural(len(facts.stalls), "stall"), facts.stalls[-_MOST_STALLS:]
    newest = f"{count}, the newest {len(shown)}:" if len(shown) < len(facts.stalls) else f"{count}:"
    seen = (
        tag("li", tag("strong", f"{trial}: "), units.shortened(text, _LONGEST))
        for trial, text in shown
    )
    return join((tag("p", newest), tag("ul", *seen, class_="plain")))


def _failures(facts: JobFacts, frame: Frame) -> Html:
    failures = facts.failures
    if not failures:
        return tag("p", "Every run has reached its target.") if facts.reached else Html()
    rows = [
        {
            "run": frame.link(each.trial),
            "when": units.minute(each.started_at),
            "batch size": each.size,
            "status": each.status,
            "why": units.shortened(each.reason, _LONGEST) or UNKNOWN,
            "cost": units.energy(each.cost_j),
        }
        for each in reversed(failures[-frame.failures :])
    ]
    text = f"{len(failures)} of {plural(facts.total.runs, 'run')} did not reach the target"
    if len(rows) < len(failures):
        text += f", the newest {len(rows)}; {frame.rest}"
    listed = table("Runs that did not reach the target, the newest first", rows)
    folded = details("Table of the failures", listed) if len(rows) > _SHOWN_FAILURES else listed
    return join((tag("p", f"{text}."), folded))


def _overhead(facts: JobFacts) -> Html:
    if not facts.overhead:
        return Html()
    all_j = facts.total.cost_j
    rows = [
        {
            "what": each.name,
            "runs": str(each.count),
            **cells(each, TIME, ENERGY, COST),
            "of all costs": percent(
                each.cost_j / all_j if each.cost_j is not None and all_j else None
            ),
        }
        for each in facts.overhead
    ]
    text = (
        "The sums above count each run from its first step to its target, else to its end. The "
        "energy of start-up is not recorded, and what follows the target is in no sum; the other "
        "rows are parts of the sums."
    )
    return join((tag("p", text), table("What zeusrun took", rows)))
