"""The tables of ``zeusrun gpu``; they fit 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from zeusrun.trial import EnergySource
from zeusrun.view import units

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from zeusrun.energy.device import Device
    from zeusrun.gpu.snapshot import GpuProcess, GpuStatus

_WIDE = 118  # columns from which full names fit
_MOST_PROCESSES = 4
_CPU_SOURCES = {
    EnergySource.COUNTER: "by its counters",
    EnergySource.ESTIMATED: "estimated from CPU time",
}
# NVML's names in common words. An idle GPU has low clocks too, but is not throttled.
_REASONS = {
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
    """Return the GPUs of a machine: their state, then their identity and their processes.

    Args:
        statuses: One for each GPU, in the order to show.
        width: Columns of the console.
    """
    doing = _table(width)
    _add_columns(doing, {"GPU": "right", "model": "left"})
    _add_columns(doing, dict.fromkeys(("power/limit", "range W", "load", "temp", "MHz"), "right"))
    doing.add_column("throttle")
    being = _table(width)
    _add_columns(being, {"GPU": "right", "UUID": "left", "energy by": "left"})
    held = any(status.held_by for status in statuses)
    if held:
        being.add_column("held by", overflow="fold")
    being.add_column("computing", overflow="fold")
    for status in statuses:
        index, source = units.count(status.cuda_index), status.energy_source
        doing.add_row(
            index,
            _model(status, width),
            _power(status),
            _range(status.power_limit_range_w),
            units.percent(status.utilization),
            _temperature(status.temperature_c),
            _clocks(status),
            _throttle(status.throttle_reasons),
        )
        being.add_row(
            index,
            status.uuid or units.UNKNOWN,
            source.value if source else units.UNKNOWN,
            *([Text(status.held_by or "")] if held else []),
            Text(_processes(status.processes)),
        )
    notes = [Text(""), Text("  MHz: multiprocessors/memory", style="dim")]
    return Group(doing, Text(""), being, *notes, *_notes(statuses))


def no_gpu_line(cpu: Device, visible: str | None) -> Text:
    """Return the line to print if a job would see no GPU.

    Args:
        cpu: The CPU, which is measured instead.
        visible: ``CUDA_VISIBLE_DEVICES``; ``None`` if it is not set, or does not matter.
    """
    hidden = ""
    if visible is not None:
        hidden = f" (CUDA_VISIBLE_DEVICES={visible}; --all shows what it hides)"
    source = _CPU_SOURCES.get(cpu.energy_source, cpu.energy_source.value)
    return Text(f"No GPU{hidden}. Jobs are measured on the CPU: {cpu.model}, energy {source}.")


def _table(width: int) -> Table:
    gap = 2 if width >= _WIDE else 1
    return Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, gap, 0, 0), header_style="dim")


def _add_columns(table: Table, columns: Mapping[str, Literal["left", "right"]]) -> None:
    for name, justify in columns.items():
        table.add_column(name, justify=justify, no_wrap=True)


def _notes(statuses: Sequence[GpuStatus]) -> list[RenderableType]:
    """Return the errors and caveats of GPUs; one line for all GPUs with the same text."""
    indices_of: dict[tuple[str, str], list[int | None]] = {}
    for status in statuses:
        for mark, text in (("!", status.error), ("·", status.caveat)):
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


def _model(status: GpuStatus, width: int) -> str:
    model = (status.model or units.UNKNOWN).removeprefix("NVIDIA ")
    return units.shortened(model, 30 if width >= _WIDE else max(8, width - 64))


def _power(status: GpuStatus) -> str:
    if status.power_w is None and status.power_limit_w is None:
        return units.UNKNOWN
    power = units.UNKNOWN if status.power_w is None else f"{status.power_w:.0f}"
    return f"{power}/{units.power(status.power_limit_w)}"


def _range(range_w: tuple[float, float] | None) -> str:
    return units.UNKNOWN if range_w is None else units.UNKNOWN.join(f"{w:.0f}" for w in range_w)


def _temperature(celsius: float | None) -> str:
    return units.UNKNOWN if celsius is None else f"{celsius:.0f} °C"


def _clocks(status: GpuStatus) -> str:
    """Return the clocks of multiprocessors and memory."""
    clocks = (status.sm_clock_mhz, status.memory_clock_mhz)
    if clocks == (None, None):
        return units.UNKNOWN
    return "/".join(units.UNKNOWN if mhz is None else f"{mhz:.0f}" for mhz in clocks)


def _throttle(reasons: Sequence[str] | None) -> str:
    if reasons is None:
        return units.UNKNOWN
    names = [_REASONS.get(reason, reason.replace("_", " ")) for reason in reasons]
    return ", ".join(dict.fromkeys(names)) or "no"


def _processes(processes: Sequence[GpuProcess] | None) -> str:
    if processes is None:
        return units.UNKNOWN
    names = [str(p.pid) if p.name is None else f"{p.name} ({p.pid})" for p in processes]
    if len(names) > _MOST_PROCESSES:
        more = len(names) - _MOST_PROCESSES + 1
        names = [*names[: _MOST_PROCESSES - 1], f"{more} more"]
    return ", ".join(names) or "nobody"
