"""Proposes an objective from the metrics that a short run has produced."""

from __future__ import annotations

import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.metrics.printed import NO_METRIC
from zeusrun.metrics.seen import EVALUATIONS, names_an_evaluation, names_training, precedes
from zeusrun.sidecar.events import REPORT
from zeusrun.target import likely_mode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeusrun.metrics.seen import SeenMetrics


_OF_THE_WHOLE = {
    *(*EVALUATIONS, "train", "training", "loss", "elbo", "nelbo"),
    *("total", "overall", "final", "avg", "average", "mean", "running", "epoch"),
}


class Proposal(NamedTuple):
    """A metric, who reported it, and a target that is a tenth better than its last value."""

    metric: str
    source: str
    mode: str | None  # ``None``: the name does not show whether high or low is better
    target: float
    last: float


def propose(
    seen: SeenMetrics, likely: str = "", monitor: tuple[str, str | None] = ("", None)
) -> Proposal | None:
    """Propose one of the metrics seen, by name and source; ``None`` if there is none.

    What the script monitors itself precedes all others, with the mode that it says. A metric of an
    evaluation precedes one of training, an accuracy precedes a loss, unless it is still 0, and a
    loss precedes a name that says nothing; of those that are left, the ``likely`` name precedes,
    and a whole loss precedes its parts.
    """
    modes = {key: monitor[1] if key[0] == monitor[0] else None for key in seen}
    modes = {key: mode or likely_mode(key[0]) for key, mode in modes.items()}

    def rank(key: tuple[str, str]) -> tuple[bool, ...]:
        words = set(re.findall("[a-z]+", re.sub("([a-z])([A-Z])", r"\1_\2", key[0]).lower()))
        evaluates = names_an_evaluation({key[0]: 0.0})
        high = likely_mode(key[0]) == "max"
        return (
            key[0] != monitor[0],
            names_training(key[0]) or key[0].startswith("losses/"),  # as in CleanRL
            not (key[1] == REPORT or high or evaluates),
            high and seen[key].last == 0,
            modes[key] is None,
            not high,
            seen[key].parts > 1,  # a mean of AUCs is not quite the AUC
            not evaluates,
            key[0] != likely,
            not words & {"loss", "elbo", "nelbo"},
            bool(words - _OF_THE_WHOLE),
        )

    usable = [
        (name, source)
        for (name, source), values in seen.items()
        if math.isfinite(values.last)
        and not values.each_step
        and not NO_METRIC.search(name.lower())
    ]
    if not usable:
        return None
    metric, source = min(usable, key=rank)
    for name, other in usable:
        if name == metric and precedes(other, source):
            source = other
    values = seen[metric, source]
    mode, last = modes[metric, source], values.last
    target = last if mode is None else propose_target(last, mode, better=True)
    return Proposal(metric, source, mode, target, last)


def propose_target(value: float, mode: str, *, better: bool) -> float:
    """Return a target, rounded to two digits: one that a value reaches, or one 10 % ``better``.

    The first epoch of another run may reach by luck what is only a little better. For an accuracy
    above half of 1 or 100, the digits and the 10 % are those of the distance to 1 or 100. With
    ``better``, an accuracy of 0 gives 0.01.
    """
    exact, top = Decimal(repr(value)), Decimal(0)
    if mode == "max":
        if better and exact == 0:
            return 0.01
        top = next((Decimal(best) for best in (1, 100) if best / 2 < exact <= best), top)
    left = exact if mode == "min" else top - exact
    if better:
        left = Context(prec=2, rounding=ROUND_FLOOR).plus(left - abs(left) / 10)
    else:
        left = Context(prec=2, rounding=ROUND_CEILING).plus(left)
    return float(left if mode == "min" else top - left)


def describe_choice(proposal: Proposal, seen: SeenMetrics) -> Iterator[str]:
    """Yield sentences on a proposed metric: what it is, and how it is logged."""
    name, source = proposal.metric, proposal.source
    better = {"min": "lower is better", "max": "higher is better"}.get(
        proposal.mode or "", "whether lower or higher is better cannot be seen"
    )
    what = "of an evaluation, " if names_an_evaluation({name: 0.0}) else ""
    how = {"stdout": "as the script prints it", REPORT: "reported by the script"}
    how_often = seen[name, source].how if (name, source) in seen else ""
    yield f"Chosen: {name} ({what}{better}), {how.get(source, f'reported by {source}')}" + (
        f" ({how_often})." if how_often else "."
    )
    others = sorted(other for other, by in seen if seen[other, by].each_step)
    if others:
        yield f"No results, because they are logged in every step: {', '.join(others[:5])}."
