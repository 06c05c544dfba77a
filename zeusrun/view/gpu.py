"""The tables of ``gpu``, which fit 80 columns, and the report of ``measure``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from zeusrun.trial import EnergySource
from zeusrun.view import units
from zeusrun.view.columns import Column, column_table
from zeusrun.view.console import warning_lines
from zeusrun.view.units import UNKNOWN, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from zeusrun.energy.device import Device
    from zeusrun.gpu.snapshot import GpuProcess, GpuStatus
    from zeusrun.maintenance.measure import Measurement

_MOST_PROCESSES = 4
_CPU_SOURCES = {
    EnergySource.COUNTER: "by its counters",
    EnergySource.ESTIMATED: "estimated from CPU time",
}
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


def gpu_sheet(statuses: Sequence[GpuStatus], width: int) -> RenderableType:
    """Return the GPUs of a machine: their state, then their identity and their processes."""
    letters = max(8, min(30, width - 64))
    doing = [
        INDEX,
        Column("model", lambda each: units.shortened(model_text(each), letters), left=True),
        Column("power/limit", _power),
        Column("range W", _power_range),
        Column("load", lambda each: units.percent(each.utilization)),
        Column("temp", lambda each: units.celsius(each.temperature_c)),
        Column("MHz", _clocks),
        Column("throttle", lambda each: throttle_text(each.throttle_reasons), left=True, folds=99),
    ]
    legend = Text("  MHz: multiprocessors/memory", style="dim")
    tables = (column_table(columns, statuses, width) for columns in (doing, _IDENTITY))
    blank = Text("")
    return Group(next(tables), blank, next(tables), blank, legend, *_notes(statuses))


def model_text(gpu: Any) -> str:  # noqa: ANN401 - of this machine, or as another one reported
    """Return the model of a GPU without its maker."""
    return (gpu.model or UNKNOWN).removeprefix("NVIDIA ")


def _power(status: GpuStatus) -> str:
    return f"{number(status.power_w, '.0f')}/{units.power(status.power_limit_w)}"


def _power_range(status: GpuStatus) -> str:
    limits_w = status.power_limit_range_w
    return UNKNOWN if limits_w is None else UNKNOWN.join(f"{limit:.0f}" for limit in limits_w)


def _clocks(status: GpuStatus) -> str:
    return f"{number(status.sm_clock_mhz, '.0f')}/{number(status.memory_clock_mhz, '.0f')}"


def no_gpu_line(cpu: Device, visible: str | None) -> Text:
    """Return the line to print if a job would see no GPU.

    ``visible`` is ``CUDA_VISIBLE_DEVICES``; ``None`` if it is not set, or does not matter.
    """
    hidden = ""
    if visible is not None:
        hidden = f" (CUDA_VISIBLE_DEVICES={visible}; --all shows what it hides)"
    source = _CPU_SOURCES.get(cpu.energy_source, cpu.energy_source.value)
    return Text(f"No GPU{hidden}. Jobs are measured on the CPU: {cpu.model}, energy {source}.")


def _notes(statuses: Sequence[GpuStatus]) -> list[Text]:
    """Return errors, holders of power limits and caveats; one line for GPUs with the same text."""
    indices_of: dict[tuple[str, str], list[int | None]] = {}
    for status in statuses:
        held = status.held_by and f"power limit held by {status.held_by}"
        for mark, text in (("!", status.error), ("·", held), ("·", status.caveat)):
            if text:
                indices_of.setdefault((mark, text), []).append(status.cuda_index)
    notes = [
        Text(f"{mark} {_gpus(indices)}: {text}", style="yellow" if mark == "!" else "dim")
        for (mark, text), indices in indices_of.items()
    ]
    return [Text(""), *notes] if notes else []


def _gpus(indices: Sequence[int | None]) -> str:
    if None in indices:
        return "GPU" if len(indices) == 1 else f"{len(indices)} GPUs"
    return f"GPU {', '.join(map(str, indices))}"


def throttle_text(reasons: Sequence[str] | None) -> str:
    """Return why clocks are low: ``heat, power``, or ``no``."""
    if reasons is None:
        return UNKNOWN
    return ", ".join(dict.fromkeys(map(throttle_word, reasons))) or "no"


def throttle_word(name: str) -> str:
    """Return NVML's name of a reason for low clocks in a common word."""
    return _THROTTLE_WORDS.get(name, name.replace("_", " "))


def _processes(processes: Sequence[GpuProcess] | None) -> str:
    if processes is None:
        return UNKNOWN
    names = [str(p.pid) if p.name is None else f"{p.name} ({p.pid})" for p in processes]
    if len(names) > _MOST_PROCESSES:
        more = len(names) - _MOST_PROCESSES + 1
        names = [*names[: _MOST_PROCESSES - 1], f"{more} more"]
    return ", ".join(names) or "none"


INDEX = Column("GPU", lambda each: number(each.cuda_index))
_IDENTITY = (
    INDEX,
    Column("UUID", lambda each: each.uuid or UNKNOWN, left=True),
    Column("energy by", lambda e: e.energy_source.value if e.energy_source else UNKNOWN, left=True),
    Column("processes", lambda each: _processes(each.processes), left=True, folds=99),
)


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
