"""The section on power of a report's page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.view import units
from zeusrun.view.report import charts
from zeusrun.view.report.markup import Html, details, figure, join, table, tag
from zeusrun.view.report.palette import STAND_INS
from zeusrun.view.report.words import percent

if TYPE_CHECKING:
    from zeusrun.view.report.job_report import JobReport
    from zeusrun.view.report.power import PowerFacts

_MOST_STALLS = 20
_LONGEST = 500  # characters of what was seen


def power_section(report: JobReport, prefix: str) -> Html:
    """Return the power of the runs: figure, table and stalls."""
    facts, power = report.facts, report.power
    stalls = [
        tag("li", tag("strong", f"{trial}: "), units.shortened(text, _LONGEST))
        for trial, text in report.stalls
    ]
    stalled = (
        join(
            (
                tag("p", f"{units.plural(len(stalls), 'stall')}:"),
                tag("ul", *stalls[-_MOST_STALLS:], class_="plain"),
            )
        )
        if stalls
        else Html()
    )
    if not power:
        return stalled
    drawn = min(charts.DRAWN_TRACES, len(power))
    heads = [
        "run",
        "batch size",
        "devices",
        "power over time",
        "mean",
        "highest",
        "limit",
        "throttled",
    ]
    rows = [
        [
            each.trial,
            each.label,
            str(each.trace.devices),
            _spark(each, len(facts.sizes)),
            units.power(each.mean_w),
            units.power(each.highest_w),
            units.power(each.limit_w),
            ", ".join(f"{word} {percent(share)}" for word, share in each.throttled) or "no",
        ]
        for each in reversed(power)
    ]
    label = (
        f"Power of the newest {units.plural(drawn, 'run')} over time, summed over the devices, "
        "with the power limit and the times of throttling."
    )
    caption = (
        f"The newest {units.plural(drawn, 'run')}, summed over the devices: mean, and range of the "
        "readings. Dashed: the power limit. Bars at the bottom: a device was throttled."
    )
    if not all(each.trace.whole for each in power):
        caption += " Long runs are sampled."
    listed = details(
        "Table of the power traces",
        table(
            f"Power of {units.plural(len(power), 'run')}, the newest first",
            heads,
            rows,
            texts=(0, 3, 7),
        ),
    )
    return figure(
        "power", charts.inline("power", facts, power, prefix, label), caption, listed, stalled
    )


def _spark(power: PowerFacts, sizes: int) -> Html:
    """Return the range of a trace as a tiny figure; the numbers stand beside it."""
    spans = power.trace.spans[:: max(1, len(power.trace.spans) // 60)]
    end = spans[-1].time_s or 1.0
    top = max(power.highest_w, power.limit_w or 0.0) or 1.0
    over = [f"{120 * span.time_s / end:.0f} {24 - 23 * span.high_w / top:.1f}" for span in spans]
    under = [f"{120 * span.time_s / end:.0f} {24 - 23 * span.low_w / top:.1f}" for span in spans]
    path = f"M{'L'.join([*over, *reversed(under)])}Z"
    colour = STAND_INS.sizes.index(STAND_INS.size(power.size, sizes))
    style = f"fill:var(--s{colour});stroke:var(--s{colour})"
    return Html(
        f'<svg viewBox="0 0 120 24" preserveAspectRatio="none" aria-hidden="true">'
        f'<path d="{path}" style="{style}"/></svg>'
    )
