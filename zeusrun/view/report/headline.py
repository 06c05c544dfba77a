"""The first sentences of a report: what a job has saved, and on what that rests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.cost import energy_text
from zeusrun.target import describe_target
from zeusrun.view import units
from zeusrun.view.units import MINUS, plural

if TYPE_CHECKING:
    from zeusrun.analysis.net_amounts import NetAmounts
    from zeusrun.trial import Trial
    from zeusrun.view.report.facts import JobFacts

_FEW = 3  # runs of the default; fewer are named
_SAME = 0.005  # a smaller share of a cost is none


def target(facts: JobFacts) -> str:
    """Return the target of a job: ``val_accuracy ≥ 0.98``."""
    return f"{units.shortened(facts.metric, 80)} {goal(facts)}"


def goal(what: JobFacts | Trial) -> str:
    """Return what the metric of a job must be, unbroken: ``≥ 0.98``."""
    return describe_target(what.target, what.mode).replace(" ", "\N{NO-BREAK SPACE}")


def percent(share: float | None) -> str:
    """Return a share as whole percent: ``18 %``."""
    return units.percent(share).replace("%", "\N{NO-BREAK SPACE}%")


def headline(facts: JobFacts) -> tuple[str, bool | None]:
    """Return what a job saves, in a few words, and whether that is good.

    ``None``: neither, or a run saves, but exploring has cost more than that so far.
    """
    share = facts.saved_share
    if share is not None and facts.explored:
        if abs(share) < _SAME:
            return f"costs the same a run as {facts.against}", None
        if share > 0:
            good = True if facts.net_cost_j >= 0 else None
            return f"saves {percent(share)} a run against {facts.against}", good
        bad = False if facts.net_cost_j <= 0 else None
        return f"costs {percent(-share)} more a run than {facts.against}", bad
    return _without_saving(facts), None


def _without_saving(facts: JobFacts) -> str:
    if not facts.reached:
        return "has not reached its target yet"
    if facts.total.cost_j is None:
        return "has no known cost yet"
    if facts.saved_share is not None:
        return f"has used {facts.against} only, so nothing is saved yet"
    return "saves an amount that is not known yet"


def basis(facts: JobFacts) -> str:
    """Return on what the headline rests."""
    if facts.saved_share is None and facts.reached:
        if facts.total.cost_j is None:
            return "The energy of its runs is unknown, and so is what they cost."
        return (
            f"No run of the default batch size ({facts.default or 'unknown'}) can be compared with "
            "the others: same objective, hardware and learning-rate rule, on GPUs of its own."
        )
    if facts.saved_share is None or not facts.explored:
        so_far = plural(len(facts.recurrences), "recurrence")
        return f"{so_far} so far; target {target(facts)}."
    runs, since = plural(facts.compared, "recurrence"), ""
    if facts.since is not None:
        since = f" since {units.moment(facts.since, '%B %Y')}"
    few = ""
    if facts.default_runs < _FEW:
        few = f", compared with {plural(facts.default_runs, 'run')} of the default"
    saved = net_text(facts.net, facts.net_cost_j)
    sentences = [f"Median of {runs}{few}; net {saved}{since}, exploring included."]
    energy_j, cost_j = facts.net.energy_j, facts.net_cost_j
    if energy_j is not None and (energy_j < 0) != (cost_j < 0) and facts.eta_knob < 1:
        sentences.append(
            f"The cost, which also counts time (eta_knob {facts.eta_knob:g}), is "
            f"{energy_text(abs(cost_j))} {'lower' if cost_j >= 0 else 'higher'}."
        )
    if cost_j < 0:
        pays = facts.pays_back_in
        back = "" if pays is None else f"; it pays back in about {plural(pays, 'more recurrence')}"
        sentences.append(f"Exploring has cost more than it has saved so far{back}.")
    net = facts.net
    counts = {"energy": net.energy_runs, "price": net.money_runs, "carbon": net.carbon_runs}
    fewer = [f"the {name} is known for {n}" for name, n in counts.items() if 0 < n < facts.compared]
    if fewer:
        sentences.append(f"Of these {runs}, {' and '.join(fewer)}.")
    return " ".join(sentences)


def net_text(net: NetAmounts, net_cost_j: float) -> str:
    """Return the sums that were saved: ``12.4 kWh of energy, 3.10 EUR, 4.90 kg CO2e saved``."""
    amounts = []
    if net.energy_j is not None:
        amounts.append((net.energy_j, f"{units.electricity(abs(net.energy_j))} of energy"))
    amounts += [(sum_, units.money(abs(sum_), name)) for name, sum_ in net.money.items()]
    if net.carbon_g is not None:
        amounts.append((net.carbon_g, f"{units.carbon(abs(net.carbon_g))} CO2e"))
    if not amounts:
        amounts = [(net_cost_j, f"{energy_text(abs(net_cost_j))} of cost")]
    loses = all(amount < 0 for amount, _ in amounts)
    texts = [text if loses or amount >= 0 else MINUS + text for amount, text in amounts]
    return f"{', '.join(texts)} {'more than the default alone' if loses else 'saved'}"
