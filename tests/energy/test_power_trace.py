"""The power of a run, shortened from ``power.csv``."""

from __future__ import annotations

import json
import os

import pytest

from zeusrun.energy.device import Health
from zeusrun.energy.monitor import COLUMNS, PowerCsv, PowerRow
from zeusrun.energy.power_trace import PowerTrace, read_power


@pytest.fixture
def path(tmp_path):
    return tmp_path / "power.csv"


def write(path, samples, devices=2, reasons=lambda t, name: (), limit=300.0):
    with_header = PowerCsv(path)
    for at in range(samples):
        rows = [
            PowerRow(
                at / 10,
                name,
                100.0 + at % 5,
                limit,
                1.0,
                Health(throttle_reasons=reasons(at, name)),
            )
            for name in (f"GPU-{device}" for device in range(devices))
        ]
        with_header.write(rows)
    with_header.close()


def test_readings_are_summed_over_the_devices_and_shortened(path):
    write(path, 100)
    trace = read_power(path, 10)
    assert (len(trace.spans), trace.devices, trace.whole) == (10, 2, True)
    first = trace.spans[0]
    assert (first.low_w, first.mean_w, first.high_w, first.limit_w) == (200, 204, 208, 600)
    assert first.time_s == pytest.approx(0.45)
    assert trace.throttled == {}


def test_a_long_file_is_read_in_pieces_that_hold_whole_samples(path):
    write(path, 20_000, devices=3)
    assert path.stat().st_size > 1 << 20
    trace = read_power(path, 50)
    assert (len(trace.spans), trace.devices, trace.whole) == (50, 3, False)
    times = [span.time_s for span in trace.spans]
    assert times == sorted(times)
    assert times[0] < 5
    assert times[-1] > 1990
    assert all(300 <= span.low_w <= span.mean_w <= span.high_w <= 312 for span in trace.spans)


def test_throttling_counts_but_an_idle_gpu_does_not(path):
    heat = ("sw_power_cap", "hw_thermal_slowdown")
    write(path, 100, reasons=lambda at, name: heat if at >= 75 else ("gpu_idle",))
    trace = read_power(path, 4)
    assert [span.throttled for span in trace.spans] == [False, False, False, True]
    assert trace.throttled == {"sw_power_cap": 0.25, "hw_thermal_slowdown": 0.25}


def test_what_is_no_reading_is_skipped(path):
    good = "0.1,GPU-1,50.000,,1.0,,,,,none\n"
    bad = [
        "nan,GPU-1,50,,,,,,,none",
        "1,GPU-1,inf,,,,,,,none",
        "1,GPU-1,-5,,,,,,,",
        "a,b",
        "\0" * 9,
    ]
    path.write_text(f"{COLUMNS}\n{good}" + "\n".join(bad) + "\n" + good.replace("0.1", "0.2"))
    trace = read_power(path, 10)
    assert [(span.time_s, span.mean_w, span.limit_w) for span in trace.spans] == [
        (0.1, 50.0, None),
        (0.2, 50.0, None),
    ]


@pytest.mark.parametrize("content", ["", COLUMNS + "\n", "nothing\nof that kind\n" * 90_000])
def test_a_file_without_readings_is_no_trace(path, content):
    path.write_text(content)
    assert read_power(path, 20) is None


def test_a_missing_file_a_pipe_and_a_link_are_no_trace(path, tmp_path):
    assert read_power(path, 20) is None
    assert read_power(tmp_path / "\0\ud800", 20) is None
    os.mkfifo(path)
    assert read_power(path, 20) is None
    link = tmp_path / "link"
    link.symlink_to("/dev/zero")
    assert read_power(link, 20) is None


def test_a_trace_becomes_json_and_back(path):
    write(path, 100, reasons=lambda at, name: ("sw_power_cap",) if at >= 75 else ())
    trace = read_power(path, 4)
    assert PowerTrace.from_json(json.loads(json.dumps(trace.to_json()))) == trace


@pytest.mark.parametrize(
    "changes",
    [
        {"spans": []},
        {"spans": 3},
        {"spans": [[1.0, 2.0]]},
        {"spans": [[1.0, float("nan"), 3.0, 4.0, None, False]]},
        {"spans": [[1.0, -2.0, 3.0, 4.0, None, False]]},
        {"spans": [["a", 2.0, 3.0, 4.0, None, False]]},
        {"devices": None},
        {"throttled": []},
        {"throttled": {"a": "b"}},
    ],
)
def test_what_is_no_trace_is_refused(path, changes):
    write(path, 100)
    record = {**read_power(path, 4).to_json(), **changes}
    with pytest.raises(ValueError, match="not a power trace"):
        PowerTrace.from_json(record)
