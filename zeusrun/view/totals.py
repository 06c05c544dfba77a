"""The table of ``history --total``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from zeusrun.view import units
from zeusrun.view.console import fitting_columns, plain_table

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
    rows = []
    for total in [*totals, whole] if len(totals) > 1 else totals:
        estimated = "~" if total.estimated_j else ""
        prices = [units.money(amount, name) for name, amount in sorted(total.prices.items())]
        cells = {
            heading: total.name,
            "runs": f"{total.runs:,}",
            "time": units.duration(total.time_s),
            "energy": estimated + units.energy(total.energy_j),
            "price": "\n".join(prices) or units.UNKNOWN,
            "carbon": units.carbon(total.carbon_g),
            "cost": units.energy(total.cost_j),
        }
        rows.append(cells)
    names = [heading, "runs", "time", "energy", *_known(whole), "cost"]
    short = [{**cells, heading: cells[heading][:_NAME]} for cells in rows]
    names = fitting_columns(names, short, ("carbon", "price", "time", "energy"), width)
    table = plain_table()
    table.add_column(heading, overflow="fold")  # the column that shrinks on a narrow terminal
    for name in names[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for number, cells in enumerate(rows, 1):
        is_whole = number == len(rows) > 1
        if is_whole:
            table.add_section()
        table.add_row(*(Text(cells[name]) for name in names), style="bold" if is_whole else None)
    return Group(table, *[Text(f"  {note}", style="dim") for note in _notes(whole, eta_knobs)])


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
