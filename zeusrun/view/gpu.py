"""Common words for what NVML says, and the report of ``measure``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from zeusrun.view import units
from zeusrun.view.console import warning_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from zeusrun.maintenance.measure import Measurement

# NVML's names in common words. An idle GPU has low clocks too, but is not throttled.
_THROTTLE_WORDS = {
    "applications_clocks_setting": "clock set",
    "display_clock_setting": "display",
    "gpu_idle": "idle",
    "hw_power_brake_slowdown": "power",
    "hw_slowdown": "hardware",
    "hw_thermal_slowdown": "heat",
    "sw_power_cap": "power",
    "sw_thermal_slowdown": "heat",
    "sync_boost": "sync",
}


def throttle_word(name: str) -> str:
    """Return NVML's name of a reason for low clocks in a common word."""
    return _THROTTLE_WORDS.get(name, name.replace("_", " "))


def measurement_sheet(argv: Sequence[str], measured: Measurement) -> RenderableType:
    """Return the time and the energy of a command in a few lines."""
    well = measured.exit_code == 0
    head = Text.assemble(
        ("✓" if well else "✗", "green" if well else "red"),
        (f" {units.shortened(shlex.join(argv), 50)}", "bold"),
        "" if well else f"  exit code {measured.exit_code}",
    )
    source = f" {measured.energy_source.value}" if measured.energy_source else ""
    time_s, mean_w, most_w = measured.time_s, measured.mean_power_w, measured.max_power_w
    # A short time and a low power have as many digits as the energy.
    short = f"{time_s:.2f} s" if time_s >= 1 else f"{time_s:.3g} s"
    spent = [units.duration(time_s) if time_s >= 10 else short]
    spent.append(units.energy(measured.energy_j) + source)
    if mean_w is not None:
        mean = f"{mean_w:.2g} W" if mean_w < 10 else units.power(mean_w)
        at_most = "" if most_w is None else f" of at most {units.power(most_w)}"
        spent.append(f"mean {mean}{at_most}")
    lines = [head, Text("  " + " · ".join(spent))]
    if len(measured.devices) > 1:
        lines += [
            Text(f"  {units.energy(each.energy_j):>8} {each.model} {each.uuid}", style="dim")
            for each in measured.devices
        ]
    accounts = units.accounts(measured.energy_counter_j, measured.energy_integrated_j)
    if accounts:
        lines.append(Text(f"  {accounts}", style="dim"))
    return Group(*lines, warning_lines(measured.warnings))
