"""The words for GPUs, and the lines of ``measure``."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console

from zeusrun.maintenance.measure import DeviceEnergy, Measurement
from zeusrun.trial import EnergySource
from zeusrun.view.gpu import measurement_sheet, throttle_word
from zeusrun.view.units import UNKNOWN

MODEL, UUID = "NVIDIA H100 80GB HBM3", "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"


def render(renderable, width=80):
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(renderable, highlight=False)
    return console.file.getvalue()


def widest(text):
    return max(map(cell_len, text.splitlines()))


def test_why_clocks_are_low_is_told_in_words_of_people():
    assert throttle_word("sw_power_cap") == "power"
    assert throttle_word("unknown_0x800") == "unknown 0x800"


MEASURED = Measurement(
    exit_code=0,
    time_s=12.34,
    energy_j=3080.0,
    energy_source=EnergySource.COUNTER,
    energy_counter_j=3080.0,
    energy_integrated_j=3000.0,
    mean_power_w=249.6,
    max_power_w=700.0,
    shared=False,
    devices=(DeviceEnergy(UUID, MODEL, 3080.0),),
    warnings=(),
)


def test_a_measurement_is_time_energy_source_power_and_both_accounts():
    assert render(measurement_sheet(["sleep", "12"], MEASURED)).splitlines() == [
        "✓ sleep 12",
        "  12.3 s · 3.08 kJ counter · mean 250 W of at most 700 W",
        "  counter 3.08 kJ · integrated 3.00 kJ (−2.6 %)",  # noqa: RUF001
    ]


def test_a_measurement_of_which_little_is_known_says_so_calmly():
    unknown = replace(
        MEASURED,
        exit_code=1,
        time_s=0.0123,
        energy_j=None,
        energy_source=None,
        energy_counter_j=None,
        mean_power_w=None,
        warnings=("too short",),
    )
    assert render(measurement_sheet(["a", "b c"], unknown)).splitlines() == [
        "✗ a 'b c'  exit code 1",
        f"  0.0123 s · {UNKNOWN}",
        "! too short",
    ]


def test_a_measurement_of_several_gpus_has_a_line_for_each():
    devices = (*MEASURED.devices, DeviceEnergy("GPU-2", MODEL, None))
    lines = render(measurement_sheet(["x"], replace(MEASURED, devices=devices))).splitlines()
    assert lines[2:4] == [
        f"   3.08 kJ {MODEL} {UUID}",
        f"         {UNKNOWN} {MODEL} GPU-2",
    ]
    assert widest("\n".join(lines)) <= 80


def test_a_long_command_is_cut():
    assert widest(render(measurement_sheet(["x" * 300], MEASURED))) <= 80
