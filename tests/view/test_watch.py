"""The parts of ``status --watch``: each fits its width, and the whole fits the terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.text import Text

from tests.schedule.model import AT
from zeusrun.schedule.due import Cursor, Rules, Timetable
from zeusrun.schedule.store import Schedule
from zeusrun.view.console import PlainConsole
from zeusrun.view.schedule import next_table
from zeusrun.view.watch import Screen, gpus_table

GPU = {
    "nvml_index": 7,
    "model": "NVIDIA A100-SXM4-80GB",
    "power_w": 399.6,
    "power_limit_w": 400.0,
    "utilization": 1.0,
    "temperature_c": 81,
    "throttle_reasons": ("sw_power_cap", "hw_thermal_slowdown"),
    "held_by": "resnet50-imagenet-nightly-1234-1",
}


def lines_of(shown, width=80, height=24):
    console = PlainConsole(file=io.StringIO(), width=width, height=height)
    console.print(shown)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_gpus_fit_the_screen_and_unknown_is_a_dash(width):
    silent = {"error": f"GPU 1 does not answer: {'NVML says GPU is lost ' * 9}"}
    lines = lines_of(gpus_table([GPU, {"nvml_index": 0}, silent], width), width)
    assert max(map(cell_len, lines)) <= width
    text = "\n".join(lines)
    for words in ("A100-SXM4-80GB", "400 W", "100\N{NO-BREAK SPACE}%", "81 °C", "sw power cap"):
        assert words in text
    assert lines[-1].startswith("! GPU 1 does not answer")
    assert lines[-1].endswith("…")
    assert lines_of(gpus_table([], width)) == []


def schedule(job, expression, **changes):
    rules, cursor = Rules(Timetable(expression, "UTC")), Cursor(AT)
    one = Schedule(job, f"/{job}.yaml", rules, "forbid", "/python", {}, cursor)
    return replace(one, **changes)


@pytest.mark.parametrize("width", [80, 120])
def test_the_first_schedule_comes_first_and_a_paused_one_not_at_all(width):
    found = [
        schedule("b" * 70, "0 3 1 1 *"),
        schedule("hourly", "30 * * * *"),
        schedule("paused", "* * * * *", paused=True),
    ]
    lines = lines_of(next_table(found, AT, width), width)
    assert max(map(cell_len, lines)) <= width
    assert "hourly" in lines[2]
    assert "bbb" in lines[3]
    assert "paused" not in "".join(lines)
    assert lines_of(next_table(found[2:], AT, width)) == []


def test_what_has_no_room_is_counted_and_parts_without_content_take_none():
    def parts(width):
        rows = [Text(f"row {number} of {width}") for number in range(6)]
        return [rows[0], Text(""), Text("\n").join(rows[1:])]

    screen = Screen("title", ["a problem " * 20], parts)
    lines = lines_of(screen, width=40, height=20)
    whole = ["title", f"! {'a problem ' * 4}"[:39] + "…", "", "row 0 of 40", ""]
    assert lines == [*whole, *(f"row {number} of 40" for number in range(1, 6))]
    assert lines_of(screen, width=40, height=8) == [*lines[:7], "… 3 more lines"]
    assert lines_of(screen, width=40, height=9)[-1] == "… 2 more lines"
    assert lines_of(screen, width=40, height=10) == lines
