"""The first sentences of a report: what a job has saved, and on what that rests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.cost import energy_text
from zeusrun.target import describe_target
from zeusrun.view import units
from zeusrun.view.claims import claim_share, is_good, net_text
from zeusrun.view.units import plural

if TYPE_CHECKING:
    from zeusrun.trial import Trial
    from zeusrun.view.report.facts import JobFacts


def target(facts: JobFacts) -> str:
    """Return the target of a job: ``val_accuracy ≥ 0.98``."""
    return f"{units.shortened(facts.metric, 80)} {goal(facts)}"


def goal(what: JobFacts | Trial) -> str:
    """Return what the metric of a job must be, unbroken: ``≥ 0.98``."""
    return describe_target(what.target, what.mode).replace(" ", "\N{NO-BREAK SPACE}")


def percent(share: float | None) -> str:
    """Return a share as whole percent: ``18 %``."""
    return units.percent(share).replace("%", "\N{NO-BREAK SPACE}%")


def unbroken(claim: str) -> str:
    """Keep each number of percent on the line of its sign."""
    return claim.replace(" %", "\N{NO-BREAK SPACE}%")


def capitalized(text: str) -> str:
    """Return a sentence with a capital letter; the rest stays as it is."""
    return text[:1].upper() + text[1:]


def headline(facts: JobFacts) -> tuple[str, bool | None]:
    """Return what a job saves, in a few words, and whether that is good; ``None``: neither is sure.

    A saving is not called good while exploring has surely cost more.
    """
    savings = facts.savings
    share, net = savings.share, savings.net
    if share is None:
        return _without_saving(facts), None
    if savings.in_use == savings.default:
        return f"uses {facts.against}, the default", None
    claim, good = unbroken(claim_share(share, " a run")), is_good(share)
    if good is None:
        return f"batch size {savings.in_use} against {savings.default}: {claim}", None
    text = f"batch size {savings.in_use} {claim} against {savings.default}"
    return text, good if is_good(net) in {good, None} else None


def _without_saving(facts: JobFacts) -> str:
    if not facts.reached:
        return "has not reached its target yet"
    if not facts.taught:
        return "has not trained with the batch size that it was to have"
    if facts.total.cost_j is None:
        return "has no known cost yet"
    if not facts.savings.explored:
        return f"has used {facts.against} only, so nothing is saved yet"
    return "what it saves is not known yet"


def basis(facts: JobFacts) -> str:
    """Return on what the headline rests."""
    savings = facts.savings
    if savings.net is None:
        if facts.reached and facts.total.cost_j is None:
            return "The energy of its runs is unknown, and so is what they cost."
        if savings.note is not None:
            return f"{capitalized(savings.note)}."
        so_far = plural(len(facts.recurrences), "recurrence")
        return f"{so_far} so far; target {target(facts)}."
    count = len(savings.by_trial)
    runs, since = plural(count, "recurrence"), ""
    if savings.since is not None:
        since = f" since {units.moment(savings.since, '%B %Y')}"
    shown = plural(savings.default_runs, "run")
    sentences = [
        f"{runs}{since}, exploring included: {net_text(facts.net, savings.net)}.",
        f"What the default costs is known from {shown} of it.",
    ]
    energy, cost = is_good(facts.net.energy_j), is_good(savings.net)
    if {energy, cost} == {True, False} and facts.eta_knob < 1:
        sentences.append(
            f"The cost, which also counts time (eta_knob {facts.eta_knob:g}), is "
            f"{energy_text(abs(savings.net.value))} {'lower' if cost else 'higher'}."
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
