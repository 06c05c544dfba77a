"""The columns of all tables: what stands in them, and which of them a narrow console leaves out."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.text import Text

from zeusrun.view import units
from zeusrun.view.console import plain_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.table import Table


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: Its heading.
        value: Returns the cell of a row: of a trial, or of anything that has the same fields.
        left: Whether it is aligned left, as words are. Numbers are aligned right.
        optional: Whether it is only shown if a value is known.
        folds: A wider cell may be folded, or cut if it is a number, as long as so many characters
            fit; ``None``: it is whole.
        leaves: Columns are left out of a table that is too wide, the smallest number first; 0: it
            always stays.
        least: The least width, so that a table which is drawn again and again stays as it is.
    """

    name: str
    value: Callable[[Any], str | Text]
    left: bool = False
    optional: bool = False
    folds: int | None = None
    leaves: int = 0
    least: int = 0


def _energy(each: Any) -> str:  # noqa: ANN401 - a trial, a recurrence or a sum
    return units.electricity(each.energy_j, getattr(each, "energy_source", None))


def _throttled(reasons: Sequence[str] | None) -> str:
    """Return why clocks are low, in NVML's words: ``sw power cap``, or ``no``."""
    if reasons is None:
        return units.UNKNOWN
    return ", ".join(reasons).replace("_", " ") or "no"


TIME = Column("time", lambda each: units.duration(each.time_s), leaves=4)
ENERGY = Column("energy", _energy, leaves=7)
PRICE = Column(
    "price", lambda each: units.money(each.price, each.currency), optional=True, leaves=2
)
CARBON = Column("carbon", lambda each: units.carbon(each.carbon_g), optional=True, leaves=1)
COST = Column("cost", lambda each: units.energy(each.cost_j))
"""What runs have taken: in ``history`` and ``status``, in reports and on the pages of a server."""
LIMIT = Column("limit", lambda each: units.power(each.power_limit_w), optional=True, leaves=5)
GPU = (
    Column("GPU", lambda gpu: units.number(gpu.nvml_index)),
    Column(
        "model", lambda gpu: (gpu.model or units.UNKNOWN).removeprefix("NVIDIA "), True, leaves=2
    ),
    Column("power", lambda gpu: units.power(gpu.power_w)),
    LIMIT,
    Column("load", lambda gpu: units.percent(gpu.utilization)),
    Column("temperature", lambda gpu: units.celsius(gpu.temperature_c)),
    Column("throttled", lambda gpu: _throttled(gpu.throttle_reasons), left=True, folds=14),
)
"""What a GPU does now: in ``status --watch`` and on the pages of a server."""
HOST = Column("host", lambda each: each.host or units.UNKNOWN, left=True, folds=99)


def tuple_columns(names: Sequence[str]) -> list[Column]:
    """Return the columns of rows that are tuples of cells; one without a name is of words."""
    return [Column(name, operator.itemgetter(at), left=not name) for at, name in enumerate(names)]


def column_table(
    columns: Sequence[Column],
    rows: Sequence[object],
    width: int,
    styles: Mapping[int, str] | None = None,
) -> Table:
    """Return a table for a console.

    Args:
        columns: In their order; those for which the console has no room are left out.
        rows: What the columns show.
        width: Of the console.
        styles: Of rows, by number.
    """
    texts = {column.name: [column.value(row) for row in rows] for column in columns}
    shown = [
        column
        for column in columns
        if not column.optional or any(str(text) != units.UNKNOWN for text in texts[column.name])
    ]

    def room(column: Column) -> int:
        cells = [str(text)[: column.folds] for text in texts[column.name]]
        lines = "\n".join([column.name, *cells]).split("\n")
        return max(column.least, *map(cell_len, lines)) + 2

    for column in sorted(shown, key=lambda each: each.leaves):
        # Two spaces follow each column, and one the last.
        if column.leaves and sum(map(room, shown)) - 1 > width:
            shown.remove(column)
    table = plain_table()
    bottom = any("\n" in column.name for column in columns)
    for column in shown:
        table.add_column(
            column.name,
            justify="left" if column.left else "right",
            min_width=column.least,
            no_wrap=column.folds is None,
            overflow="fold" if column.left and column.folds is not None else "ellipsis",
            vertical="bottom" if bottom else "top",
        )
    for number in range(len(rows)):
        row = [texts[column.name][number] for column in shown]
        whole = [Text(text) if isinstance(text, str) else text for text in row]
        table.add_row(*whole, style=(styles or {}).get(number))
    return table
