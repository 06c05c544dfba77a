"""The table of ``history --total``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from zeusrun.view import units
from zeusrun.view.console import plain_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from zeusrun.analysis.totals import Total


def totals_table(group: str, totals: Sequence[Total], whole: Total) -> RenderableType:
    """Return a row for each group and one for all of them, and what is not included."""
    priced, clean = bool(whole.prices), whole.carbon_g is not None
    names = ["runs", "time", "energy", *(["price"] if priced else [])]
    names += [*(["carbon"] if clean else []), "cost"]
    table = plain_table()
    heading = "GPU" if group == "gpu" else group
    table.add_column(heading, overflow="fold")  # the column that shrinks on a narrow terminal
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    rows = [*totals, whole] if len(totals) > 1 else totals
    for total in rows:
        estimated = "~" if total.estimated_j else ""
        prices = [units.money(amount, name) for name, amount in sorted(total.prices.items())]
        cells = {
            "runs": f"{total.runs:,}",
            "time": units.duration(total.time_s),
            "energy": estimated + units.energy(total.energy_j),
            "price": "\n".join(prices) or units.UNKNOWN,
            "carbon": units.carbon(total.carbon_g),
            "cost": units.energy(total.cost_j),
        }
        last = total is whole and len(totals) > 1
        if last:
            table.add_section()
        table.add_row(Text(total.name), *(cells[n] for n in names), style="bold" if last else None)
    return Group(table, *[Text(f"  {note}", style="dim") for note in _notes(whole)])


def _notes(whole: Total) -> list[str]:
    known = {"energy": True, "price": bool(whole.prices), "carbon": whole.carbon_g is not None}
    lacking: dict[int, list[str]] = {}
    for name in filter(known.get, known):
        lacking.setdefault(whole.unknown[name], []).append(name)
    notes = ["~ includes energy that was estimated from CPU time"] if whole.estimated_j else []
    notes += [
        f"unknown, so not included: {' and '.join(names)} of {units.plural(count, 'run')}"
        for count, names in lacking.items()
        if count
    ]
    if not whole.prices:
        notes.append("no run has a price; the section price of a job file sets one")
    return notes
