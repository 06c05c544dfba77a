"""The tables of ``gpu``, and the lines of ``measure``."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from rich.console import Console

from zeusrun.gpu.snapshot import GpuProcess, GpuStatus
from zeusrun.maintenance.measure import DeviceEnergy, Measurement
from zeusrun.trial import EnergySource
from zeusrun.view.gpu import gpu_sheet, measurement_sheet, no_gpu_line
from zeusrun.view.units import UNKNOWN

PLAIN = GpuStatus(
    cuda_index=0,
    uuid="GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77",
    model="NVIDIA H100 80GB HBM3",
    power_w=251.4,
    power_limit_w=700.0,
    power_limit_range_w=(200.0, 700.0),
    max_power_w=700.0,
    energy_source=EnergySource.COUNTER,
    energy_j=1e6,
    utilization=0.98,
    temperature_c=55,
    sm_clock_mhz=1980,
    memory_clock_mhz=2619,
    throttle_reasons=(),
    processes=(),
)
LARGE = replace(
    PLAIN,
    cuda_index=7,
    model="NVIDIA A100-SXM4-80GB MIG 1g.10gb",
    power_w=1000.0,
    power_limit_w=1200.0,
    power_limit_range_w=(200.0, 1200.0),
    utilization=1.0,
    temperature_c=101,
    throttle_reasons=("sw_power_cap", "hw_thermal_slowdown", "unknown_0x800"),
    processes=tuple(GpuProcess(4_000_000 + n, "python3.11-with-a-long-name") for n in range(9)),
    caveat="a part of a whole",
    held_by="a-recurring-job-with-a-rather-long-name-12345-5",
)
LOST = GpuStatus(cuda_index=3, error="NVML says GPU is lost; see `nvidia-smi` and `dmesg`")
SILENT = GpuStatus()
ALL = [PLAIN, LARGE, LOST, SILENT]


def render(renderable, width=80):
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(renderable, highlight=False)
    return console.file.getvalue()


def widest(text):
    return max(map(cell_len, text.splitlines()))


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("statuses", [[PLAIN], [PLAIN] * 8, ALL])
def test_the_table_fits(width, statuses):
    assert widest(render(gpu_sheet(statuses, width), width)) <= width


def test_at_80_columns_nothing_of_a_usual_gpu_is_cut():
    text = render(gpu_sheet([PLAIN] * 8, 80))
    assert "…" not in text
    for told in (
        "H100 80GB HBM3",
        "251/700 W",
        f"200{UNKNOWN}700",
        "98%",
        "55 °C",
        "1980/2619",
        PLAIN.uuid,
    ):
        assert text.count(told) == 8, told


def test_what_is_unknown_is_a_dash_and_never_a_zero():
    text = render(gpu_sheet([SILENT], 80))
    rows = [line.split() for line in text.splitlines() if line.strip().startswith(UNKNOWN)]
    pair = f"{UNKNOWN}/{UNKNOWN}"  # power and limit, two clocks
    doing = [UNKNOWN, UNKNOWN, pair, UNKNOWN, UNKNOWN, UNKNOWN, pair, UNKNOWN]
    assert rows == [doing, [UNKNOWN] * 4]
    assert "0" not in text


def test_a_limit_without_a_power_and_a_power_without_a_limit_are_both_shown():
    half = [replace(PLAIN, power_w=None), replace(PLAIN, power_limit_w=None)]
    text = render(gpu_sheet(half, 80))
    assert f"{UNKNOWN}/700 W" in text
    assert f"251/{UNKNOWN}" in text


def test_a_gpu_that_does_not_answer_says_why_below():
    assert "! GPU 3: NVML says GPU is lost" in render(gpu_sheet([PLAIN, LOST], 80))


def test_a_caveat_is_told_below():
    assert "· GPU 7: a part of a whole" in render(gpu_sheet([LARGE], 80))


def test_what_holds_the_clocks_back_is_told_in_words_of_people():
    text = render(gpu_sheet([replace(LARGE, throttle_reasons=("sw_power_cap",))], 120), 120)
    assert "power" in text.splitlines()[2].split()[-1]
    both = replace(PLAIN, throttle_reasons=("hw_thermal_slowdown", "sw_thermal_slowdown"))
    assert render(gpu_sheet([both], 120), 120).count("heat") == 1
    new = replace(PLAIN, throttle_reasons=("unknown_0x800",))
    assert "unknown 0x800" in render(gpu_sheet([new], 120), 120)


def test_who_computes_is_named_a_few_at_most():
    text = render(gpu_sheet([LARGE], 200), 200)
    assert "python3.11-with-a-long-name (4000002), 6 more" in text
    nameless = replace(PLAIN, processes=(GpuProcess(123, None),))
    assert " 123" in render(gpu_sheet([nameless], 80))
    assert "none" in render(gpu_sheet([PLAIN], 80))


def test_who_holds_a_limit_is_told_only_where_somebody_does():
    assert "held by" not in render(gpu_sheet([PLAIN], 80))
    held = replace(PLAIN, held_by="digits-7-1")
    text = render(gpu_sheet([PLAIN, held], 80))
    assert "held by" in text
    assert text.count("digits-7-1") == 1


def test_names_are_no_markup():
    odd = replace(PLAIN, processes=(GpuProcess(1, "[red]x"),), held_by="[bold]job")
    text = render(gpu_sheet([odd], 120), 120)
    assert "[red]x" in text
    assert "[bold]job" in text


def test_without_a_gpu_the_line_says_why_and_what_is_metered_instead():
    cpu = SimpleNamespace(model="A CPU", energy_source=EnergySource.ESTIMATED)
    assert no_gpu_line(cpu, None).plain == (
        "No GPU. Jobs are measured on the CPU: A CPU, energy estimated from CPU time."
    )
    assert "CUDA_VISIBLE_DEVICES=-1; --all shows what it hides" in no_gpu_line(cpu, "-1").plain
    counted = SimpleNamespace(model="A CPU", energy_source=EnergySource.COUNTER)
    assert "by its counters" in no_gpu_line(counted, None).plain


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
    devices=(DeviceEnergy(PLAIN.uuid, PLAIN.model, 3080.0),),
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
    devices = (*MEASURED.devices, DeviceEnergy("GPU-2", PLAIN.model, None))
    lines = render(measurement_sheet(["x"], replace(MEASURED, devices=devices))).splitlines()
    assert lines[2:4] == [
        f"   3.08 kJ {PLAIN.model} {PLAIN.uuid}",
        f"         {UNKNOWN} {PLAIN.model} GPU-2",
    ]
    assert widest("\n".join(lines)) <= 80


def test_a_long_command_is_cut():
    assert widest(render(measurement_sheet(["x" * 300], MEASURED))) <= 80


def test_what_is_true_of_several_gpus_is_told_once():
    caveat = "a part of a whole"
    gpus = [replace(PLAIN, cuda_index=index, caveat=caveat) for index in range(3)]
    assert f"· GPU 0, 1, 2: {caveat}" in render(gpu_sheet(gpus, 80))
    nameless = [replace(PLAIN, cuda_index=None, error="GPU is lost") for _ in range(2)]
    assert "! 2 GPUs: GPU is lost" in render(gpu_sheet(nameless, 80))
