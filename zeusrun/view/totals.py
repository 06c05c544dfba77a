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
    names = ["runs", "time", "energy", *_known(whole), "cost"]
    table = plain_table()
    heading = "GPU" if group == "gpu" else group
    table.add_column(heading, overflow="fold")  # the column that shrinks on a narrow terminal
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for total in [*totals, whole] if len(totals) > 1 else totals:
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
        if total is whole:
            table.add_section()
        style = "bold" if total is whole else None
        table.add_row(Text(total.name), *(cells[name] for name in names), style=style)
    return Group(table, *[Text(f"  {note}", style="dim") for note in _notes(whole)])


def _known(whole: Total) -> list[str]:
    """Return which of price and carbon is known of a run."""
    return ["price"] * bool(whole.prices) + ["carbon"] * (whole.carbon_g is not None)


def _notes(whole: Total) -> list[str]:
    lacking: dict[int, list[str]] = {}
    for name in ("energy", *_known(whole)):
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
