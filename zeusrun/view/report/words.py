"""Amounts and sentences of a report. Unknown is a dash."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from zeusrun.cost import energy_text
from zeusrun.view import units
from zeusrun.view.units import MINUS, UNKNOWN, plural

if TYPE_CHECKING:
    from zeusrun.view.report.facts import JobFacts

_J_PER_KWH = 3.6e6
_LEAST_KWH = 0.05  # less is written in Wh, and less than 0.05 Wh in joules


def kwh(joules: float | None) -> str:
    """Return energy as an electricity bill has it: ``12.4 kWh``; little of it in Wh or joules."""
    if joules is None:
        return UNKNOWN
    amount = abs(joules) / _J_PER_KWH
    sign = MINUS if joules < 0 else ""
    if amount >= _LEAST_KWH:
        return f"{sign}{digits(amount)} kWh"
    if 1000 * amount >= _LEAST_KWH:
        return f"{sign}{digits(1000 * amount)} Wh"
    return sign + energy_text(abs(joules))


def money(amount: float | None, currency: str | None) -> str:
    """Return an amount of money: ``3.10 EUR``; less than a cent with two digits."""
    if amount is None or currency is None:
        return UNKNOWN
    sign, size = MINUS if amount < 0 else "", abs(amount)
    text = f"{size:,.2f}" if size >= 0.1 or size == 0 else f"{size:.2g}"
    return f"{sign}{text} {currency}"


def carbon(grams: float | None) -> str:
    """Return an amount of CO2 equivalent: ``4.9 kg CO2e``."""
    if grams is None:
        return UNKNOWN
    sign, size = MINUS if grams < 0 else "", abs(grams)
    unit, factor = ("t", 1e6) if size >= 1e6 else ("kg", 1e3) if size >= 1e3 else ("g", 1.0)
    return f"{sign}{digits(size / factor)} {unit} CO2e"


def digits(number: float) -> str:
    """Return a number with three digits, or all before the point: ``0.12``, ``1.24``, ``1,240``."""
    if number >= 99.95:
        return f"{number:,.0f}"
    return (
        f"{number:.1f}"
        if number >= 9.995
        else f"{number:.2f}"
        if number >= 0.1
        else f"{number:.2g}"
    )


def percent(share: float | None) -> str:
    """Return a share as whole percent: ``18 %``."""
    return units.percent(share).replace("%", "\N{NO-BREAK SPACE}%")


def month(rfc3339: str) -> str:
    """Return the month of a time: ``March 2026``."""
    found = parsed(rfc3339)
    return rfc3339[:7] if found is None else found.strftime("%B %Y")


def day(rfc3339: str | None) -> str:
    """Return the day of a time: ``2026-03-01``."""
    found = None if rfc3339 is None else parsed(rfc3339)
    return (rfc3339 or UNKNOWN)[:10] if found is None else found.strftime("%Y-%m-%d")


def moment(rfc3339: str) -> str:
    """Return a time to the minute: ``2026-03-01 02:00``."""
    found = parsed(rfc3339)
    return rfc3339[:16] if found is None else found.strftime("%Y-%m-%d %H:%M")


def parsed(rfc3339: str) -> dt.datetime | None:
    """Return a recorded time in the local time zone; ``None`` if it is none."""
    try:
        return dt.datetime.fromisoformat(rfc3339.replace("Z", "+00:00")).astimezone()
    except (ValueError, OverflowError):
        return None


def target(facts: JobFacts) -> str:
    """Return the target of a job: ``val_accuracy ≥ 0.98``."""
    sign = "≤" if facts.mode == "min" else "≥"
    return f"{facts.metric} {sign}\N{NO-BREAK SPACE}{facts.target:g}"


def headline(facts: JobFacts) -> tuple[str, bool | None]:
    """Return what a job saves, in a few words, and whether that is good; ``None``: neither."""
    default, share = facts.default, facts.saved_share
    if share is None or not facts.explored:
        return _without_saving(facts), None
    if abs(share) < 0.005:
        return f"costs the same a run as batch size {default}", None
    if share > 0:
        return f"saves {percent(share)} a run against batch size {default}", True
    return f"costs {percent(-share)} more a run than batch size {default}", False


def _without_saving(facts: JobFacts) -> str:
    if not facts.reached:
        return "has not reached its target yet"
    if facts.total_cost_j is None:
        return "has no known cost yet"
    if facts.saved_share is not None:
        return f"has used batch size {facts.default} only, so nothing is saved yet"
    return "saves an amount that is not known yet"


def basis(facts: JobFacts) -> str:
    """Return on what the headline rests."""
    if facts.saved_share is None:
        if not facts.reached:
            return f"{plural(len(facts.recurrences), 'recurrence')} so far; target {target(facts)}."
        if facts.total_cost_j is None:
            return "The energy of its runs is unknown, and so is what they cost."
        return (
            f"No run of the default batch size ({facts.default or 'unknown'}) can be compared with "
            "the others: same objective, hardware and learning-rate rule, on GPUs of its own."
        )
    if not facts.explored:
        return f"{plural(facts.compared, 'recurrence')} so far; target {target(facts)}."
    net = facts.net
    values = [] if net.energy_j is None else [(net.energy_j, kwh(abs(net.energy_j)))]
    values += [(sum_, money(abs(sum_), name)) for name, sum_ in net.money.items()]
    values += [] if net.carbon_g is None else [(net.carbon_g, carbon(abs(net.carbon_g)))]
    if not values:
        values = [(facts.net_cost_j, f"{energy_text(abs(facts.net_cost_j))} of cost")]
    loses = all(value < 0 for value, _ in values)
    texts = [text if loses or value >= 0 else MINUS + text for value, text in values]
    what = "more than the default alone" if loses else "saved"
    since = f" since {month(facts.since)}" if facts.since else ""
    runs = plural(facts.compared, "recurrence")
    sentence = f"Median of {runs}; net {', '.join(texts)} {what}{since}, exploring included."
    energy_j, cost = net.energy_j, energy_text(abs(facts.net_cost_j))
    if energy_j is not None and (energy_j < 0) != (facts.net_cost_j < 0) and facts.eta_knob < 1:
        than = "lower" if facts.net_cost_j >= 0 else "higher"
        sentence += (
            f" The cost, which also counts time (eta_knob {facts.eta_knob:g}), is {cost} {than}."
        )
    if facts.net_cost_j < 0:
        sentence += " Exploring has cost more than it has saved so far"
        pays = facts.pays_back_in
        sentence += (
            "." if pays is None else f"; it pays back in about {plural(pays, 'more recurrence')}."
        )
    fewer = {net.energy_runs, net.money_runs, net.carbon_runs} - {0, facts.compared}
    if fewer:
        least = f"{min(fewer)} of {runs}"
        sentence += f" Each of these sums counts at least {least}."
    return sentence
