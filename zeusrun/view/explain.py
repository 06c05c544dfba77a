"""Shows a belief on a console: its sentences, then a table of the batch sizes."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from zeusrun.view import units
from zeusrun.view.belief import is_known
from zeusrun.view.columns import COST, Column, column_table
from zeusrun.view.console import Labelled
from zeusrun.view.tables import remarks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from zeusrun.analysis.curves import CurveUnit
    from zeusrun.bandit.problem import ArmBelief
    from zeusrun.view.belief import Belief

_LEGEND = {
    "evidence": "runs that reached the target, of those that count for the next choice",
    "epochs, cost": "expected of a run with this batch size, until it reaches the target",
    "90 % range": "of the cost of the next run, which is stopped at its bound",
    "risk": "the probability that the next run costs too much, or misses the target",
    "worth": "what a try is expected to save later, less its own cost; of the cheapest, 0",
    "next": "the probability that the next run uses this batch size",
}


def explain_table(
    title: str,
    belief: Belief,
    kept: Sequence[str] = (),
    limits: Mapping[int, tuple[float, int]] = MappingProxyType({}),
    *,
    width: int = 80,
) -> RenderableType:
    """Return what a policy believes about each batch size: a table, then a verdict on each.

    ``kept`` are remarks about past trials that are interpreted differently now. ``limits`` has, for
    each arm, the best power limit in watts and the number of measured limits. ``width`` is the
    width of the console in characters; columns that do not fit are left out.
    """
    beliefs, unit, lead = belief.arms, belief.unit, belief.sentences
    likely = [each.chance >= 0.5 for each in beliefs]
    bold = {number: "bold" for number, each in enumerate(likely) if each}
    table = column_table(belief_columns(unit), beliefs, width, bold)
    names = {column.header for column in table.columns}
    verdicts = []
    for each, bright in zip(beliefs, likely, strict=True):
        # The lead says why.
        verdict = "the next run uses it; see above" if each.is_next else each.verdict
        style = "" if bright else "dim"
        verdicts.append((Text(f"{each.global_batch_size:5}", style), Text(verdict, style)))
    named = {name.replace("epochs", unit): text for name, text in _LEGEND.items()}
    legend = [f"{name}: {text}" for name, text in named.items() if name.split(", ")[-1] in names]
    if limits:
        best = [f"{arm}: {units.power(w)}, best of {of}" for arm, (w, of) in limits.items()]
        legend.append(f"power limit: {' · '.join(best)}")
    if any(each.reached for each in beliefs):
        legend.append("with other settings: zeusrun simulate JOB --set objective.eta_knob=1")
    notes = Labelled([(Text(), Text(text, style="dim")) for text in legend])
    blank, headline = Text(""), Text(lead[0], style="bold")
    first = (headline, Labelled([(Text(), Text(text)) for text in lead[1:]]), blank)
    below = (Labelled(verdicts), blank, notes, remarks(kept))
    return Group(*first, Text(title, style="dim"), blank, table, blank, *below)


def _expected(epochs: float | None) -> str:
    """Return expected epochs, or samples: with a fraction below 10, else three digits at most."""
    if epochs is None or epochs < 9.95:
        return units.number(epochs, ".1f")
    return units.three_digits(epochs)


def _range(belief: ArmBelief) -> str:
    range_j = belief.cost_range_j
    return units.energy_range(range_j) if is_known(range_j) else "hardly known"


def belief_columns(unit: CurveUnit) -> list[Column]:
    """Return the columns of the table of beliefs, one row for each batch size."""
    names = {each.name: each.name.replace("epoch", unit.removesuffix("s")) for each in _BELIEF}
    return [replace(each, name=names[each.name]) for each in _BELIEF]


_BELIEF = [
    Column("batch", lambda each: str(each.global_batch_size)),
    Column(
        "evidence",
        lambda each: f"{each.reached}/{each.trials}" if each.trials else units.UNKNOWN,
        leaves=2,
    ),
    Column("epochs", lambda each: _expected(each.epochs), leaves=4),
    Column("cost/\nepoch", lambda each: units.energy(each.epoch_cost_j), leaves=1),
    COST,
    Column("90 % range", _range, leaves=6),
    Column("risk", lambda each: units.percent(each.failure_chance), leaves=3),
    Column(
        "worth",
        lambda each: units.gain(each.value_j) if each.value_j else units.UNKNOWN,
        optional=True,
        leaves=5,
    ),
    Column("next", lambda each: units.percent(each.chance)),
]
