"""The report of ``measure``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from zeusrun.view import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from zeusrun.maintenance.measure import Measurement


def measurement_sheet(argv: Sequence[str], measured: Measurement) -> RenderableType:
    """Return the time and the energy of a command in a few lines.

    Args:
        argv: The command.
        measured: Its measurement.
    """
    well = measured.exit_code == 0
    head = Text.assemble(
        ("✓" if well else "✗", "green" if well else "red"),
        (f" {units.shortened(shlex.join(argv), 50)}", "bold"),
        "" if well else f"  exit code {measured.exit_code}",
    )
    source = f" {measured.energy_source.value}" if measured.energy_source else ""
    spent = [_duration(measured.time_s), units.energy(measured.energy_j) + source]
    if measured.mean_power_w is not None:
        most = measured.max_power_w
        of_at_most = "" if most is None else f" of at most {units.power(most)}"
        spent.append(f"mean {_power(measured.mean_power_w)}{of_at_most}")
    lines: list[RenderableType] = [head, Text("  " + " · ".join(spent))]
    if len(measured.devices) > 1:
        lines += [
            Text(f"  {units.energy(each.energy_j):>8} {each.model} {each.uuid}", style="dim")
            for each in measured.devices
        ]
    accounts = units.accounts(measured.energy_counter_j, measured.energy_integrated_j)
    if accounts:
        lines.append(Text(f"  {accounts}", style="dim"))
    lines += [Text(f"! {warning}", style="yellow") for warning in measured.warnings]
    return Group(*lines)


def _duration(seconds: float) -> str:
    """Return a duration; a short one has three digits, as its energy has."""
    if seconds >= 10:
        return units.duration(seconds)
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds:.3g} s"


def _power(watts: float) -> str:
    return f"{watts:.2g} W" if watts < 10 else units.power(watts)
