"""What ``gpu`` and ``gpu watch`` show; the tables fit 80 columns."""

from __future__ import annotations

import csv
import io
import itertools
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from zeusrun.trial import EnergySource
from zeusrun.view import units
from zeusrun.view.export import csv_cell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from zeusrun.gpu.snapshot import CpuStatus, GpuProcess, GpuStatus
    from zeusrun.gpu.watch import WatchedGpu

_WIDE = 118  # columns from which full names fit
_MOST_PROCESSES = 4
_BARS = "▁▂▃▄▅▆▇█"
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
WATCH_COLUMNS = (
    "time_s",
    "cuda_index",
    "uuid",
    "power_w",
    "energy_j",
    "power_limit_w",
    "utilization",
    "temperature_c",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "throttle_reasons",
    "error",
)
"""Of the lines that ``gpu watch`` prints where nobody watches."""


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


def watch_sheet(watched: Sequence[WatchedGpu], elapsed_s: float, width: int) -> RenderableType:
    """Return the GPUs of a machine as they are now, with their last minute.

    Args:
        watched: One for each GPU, in the order to show.
        elapsed_s: Seconds since the watch began.
        width: Columns of the console.
    """
    table = _table(width)
    _add_columns(table, {"GPU": "right", "model": "left", "power/limit": "right"})
    _add_columns(table, {"last minute": "left"})
    _add_columns(table, dict.fromkeys(("energy", "load", "temp"), "right"))
    _add_columns(table, {"throttle": "left"})
    models = [_model(each.status, width) for each in watched]
    rest, throttle = _WIDE_REST if width >= _WIDE else _REST
    room = max(5, min(40, width - rest - throttle - max(map(len, models), default=0)))
    for each, model in zip(watched, models, strict=True):
        status = each.status
        table.add_row(
            units.count(status.cuda_index),
            model,
            _power(status),
            power_bars(each.recent, status.max_power_w, room),
            units.energy(each.energy_j, each.energy_source),
            units.percent(status.utilization),
            _temperature(status.temperature_c),
            units.shortened(_throttle(status.throttle_reasons), throttle),
        )
    total = f"{units.duration(elapsed_s)} · Ctrl-C ends"
    if len(watched) > 1:
        power_w = _sum([each.status.power_w for each in watched])
        energy_j = _sum([each.energy_j for each in watched])
        total = f"all: {units.power(power_w)} · {units.energy(energy_j)} in {total}"
    statuses = [each.status for each in watched]
    notes = [each.note for each in watched]
    return Group(table, *_notes(statuses, notes), Text(""), Text(total, style="dim"))


# Columns of all but the model, the last minute and throttling, gaps included; of throttling.
_REST = (3 + 11 + 8 + 4 + 6 + 15, 8)
_WIDE_REST = (3 + 11 + 8 + 4 + 6 + 23, 20)


def power_bars(
    recent: Sequence[tuple[float, float | None]],
    ceiling_w: float | None,
    width: int,
    span_s: float = 60.0,
) -> str:
    """Return the latest power as one line of bars, now at its right end.

    Args:
        recent: Seconds ago and watts, oldest first; ``None`` where power is unknown.
        ceiling_w: What a full bar stands for; ``None`` for the most that was drawn.
        width: How many bars.
        span_s: Seconds that they stand for.
    """
    bins: list[list[float]] = [[] for _ in range(width)]
    for age_s, watts in recent:
        place = width - 1 - int(age_s / span_s * width)
        if watts is not None and place >= 0:
            bins[place].append(watts)
    means = [sum(kept) / len(kept) if kept else None for kept in bins]
    top_w = ceiling_w or max((mean for mean in means if mean is not None), default=0.0) or 1.0
    highest = len(_BARS) - 1
    return "".join(
        " " if mean is None else _BARS[max(0, min(highest, int(mean / top_w * len(_BARS))))]
        for mean in means
    )


def no_gpu_line(cpu: CpuStatus, visible: str | None) -> Text:
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


def watch_lines(watched: Sequence[WatchedGpu], elapsed_s: float) -> str:
    """Return the GPUs as lines of CSV, in the order of ``WATCH_COLUMNS``; unknown is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for each in watched:
        status = each.status
        reasons = status.throttle_reasons
        writer.writerow(
            [
                f"{elapsed_s:.3f}",
                status.cuda_index,
                status.uuid,
                _number(status.power_w),
                _number(each.energy_j),
                _number(status.power_limit_w),
                _number(status.utilization),
                _number(status.temperature_c),
                _number(status.sm_clock_mhz),
                _number(status.memory_clock_mhz),
                None if reasons is None else "+".join(reasons) or "none",
                csv_cell(status.error),
            ]
        )
    return text.getvalue().rstrip("\n")


def _table(width: int) -> Table:
    gap = 2 if width >= _WIDE else 1
    return Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, gap, 0, 0), header_style="dim")


def _add_columns(table: Table, columns: Mapping[str, Literal["left", "right"]]) -> None:
    for name, justify in columns.items():
        table.add_column(name, justify=justify, no_wrap=True)


def _notes(
    statuses: Sequence[GpuStatus], energy_notes: Sequence[str | None] = ()
) -> list[RenderableType]:
    """Return warnings and remarks; those that several GPUs share appear once."""
    indices_of: dict[tuple[str, str], list[int | None]] = {}
    for status, energy_note in itertools.zip_longest(statuses, energy_notes):
        trouble = status.error or energy_note  # the error of a GPU also explains its missing energy
        for mark, text in (("!", trouble), ("·", status.caveat)):
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


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.6g}" if abs(value) < 1e5 else f"{value:.3f}"
