"""The table of ``history --total``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from zeusrun.view import units
from zeusrun.view.columns import CARBON, COST, TIME, Column, column_table

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.console import RenderableType

    from zeusrun.analysis.totals import Total


_NAME = 8  # columns for the names of groups; longer ones fold


def totals_table(
    group: str,
    totals: Sequence[Total],
    whole: Total,
    eta_knobs: Collection[float] = (),
    width: int = 80,
) -> RenderableType:
    """Return a row for each group and one for all of them, and what is not included.

    Args:
        group: What each of ``totals`` stands for.
        totals: A row each.
        whole: The last row.
        eta_knobs: Of the runs whose costs are added.
        width: Of the console; columns for which it has no room are not shown.
    """
    heading = "GPU" if group == "gpu" else group
    columns = [
        Column(heading, lambda each: each.name, left=True, folds=_NAME),
        Column("runs", lambda each: f"{each.runs:,}"),
        replace(TIME, leaves=3),
        Column("energy", _energy, leaves=4),
        Column("price", _prices, optional=True, leaves=2),
        CARBON,
        COST,
    ]
    if len(totals) > 1:
        rows, bold = [*totals, whole], {len(totals): "bold"}
        table = column_table(columns, rows, width, bold, total=True)
    else:
        table = column_table(columns, totals, width)
    return Group(table, *[Text(f"  {note}", style="dim") for note in _notes(whole, eta_knobs)])


def _energy(total: Total) -> str:
    return ("~" if total.estimated_j else "") + units.energy(total.energy_j)


def _prices(total: Total) -> str:
    sums = (units.money(amount, name) for name, amount in sorted(total.prices.items()))
    return "\n".join(sums) or units.UNKNOWN


def _known(whole: Total) -> list[str]:
    """Return which of price and carbon is known of a run."""
    return ["price"] * bool(whole.prices) + ["carbon"] * (whole.carbon_g is not None)


def _notes(whole: Total, eta_knobs: Collection[float]) -> list[str]:
    lacking: dict[int, list[str]] = {}
    for name in ("energy", *_known(whole)):
        lacking.setdefault(whole.unknown[name], []).append(name)
    notes = ["~ includes energy that was estimated from CPU time"] if whole.estimated_j else []
    notes += [
        f"unknown, so not included: {' and '.join(names)} of {units.plural(count, 'run')}"
        for count, names in lacking.items()
        if count
    ]
    if len(eta_knobs) > 1:
        knobs = ", ".join(f"{each:g}" for each in sorted(eta_knobs))
        notes.append(f"the cost adds costs of different eta_knob ({knobs})")
    if not whole.prices:
        notes.append("no run has a price; the section price of a job file sets one")
    notes.append("a run counts from its first step to its target, else to its end")
    return notes
