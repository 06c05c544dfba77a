"""A ``power.csv`` that anyone can read: dense for an hour, then one sample a second."""

from __future__ import annotations

import csv
import os

import pytest

from zeusrun.energy.device import Health
from zeusrun.energy.monitor import COLUMNS, PowerCsv, PowerRow

WATTS = 250.0


def rows_of(path):
    with path.open(encoding="ascii", newline="") as file:
        return list(csv.DictReader(file))


def write(output, first, ticks, uuids=("A", "B")):
    """Write samples of devices that draw 250 W, ten a second."""
    for number in range(first, first + ticks):
        time_s = number / 10
        output.write([PowerRow(time_s, uuid, WATTS, 300.0, time_s * WATTS) for uuid in uuids])


def test_a_row_tells_all_and_an_unknown_cell_is_empty(tmp_path):
    path = tmp_path / "power.csv"
    health = Health(0.98, 65.0, 1410.0, 1215.0, ("sw_power_cap", "hw_slowdown"))
    output = PowerCsv(path)
    output.write(
        [
            PowerRow(0.5, "A", 123.4567, 300.0, 1234567.8914, health),
            PowerRow(0.5, "B", None, None, None, Health(throttle_reasons=())),
            PowerRow(0.5, "C", None, None, None, None),
        ]
    )
    assert path.read_text().splitlines() == [
        COLUMNS,
        "0.500,A,123.457,300.000,1234567.891,0.98,65,1410,1215,sw_power_cap+hw_slowdown",
        "0.500,B,,,,,,,,none",
        "0.500,C,,,,,,,,",
    ]


def test_after_an_hour_the_first_sample_of_each_second_is_written(tmp_path):
    path = tmp_path / "power.csv"
    output = PowerCsv(path)
    write(output, 36_000 - 20, 20)
    write(output, 36_000, 55)
    rows = rows_of(path)
    for uuid in ("A", "B"):
        times_s = [float(row["time_s"]) for row in rows if row["uuid"] == uuid]
        dense = [3598 + number / 10 for number in range(20)]
        assert times_s == pytest.approx([*dense, 3600, 3601, 3602, 3603, 3604, 3605])
    assert all(
        float(row["energy_j"]) == pytest.approx(float(row["time_s"]) * WATTS) for row in rows
    )


def test_a_run_sampled_less_often_than_once_a_second_keeps_every_sample(tmp_path):
    path = tmp_path / "power.csv"
    output = PowerCsv(path)
    for time_s in (3599.5, 3601.2, 3605.9, 3606.1):
        output.write([PowerRow(time_s, "A", WATTS, None, None)])
    assert [row["time_s"] for row in rows_of(path)] == [
        "3599.500",
        "3601.200",
        "3605.900",
        "3606.100",
    ]


def test_a_second_sample_after_a_failed_device_is_that_of_the_others(tmp_path):
    path = tmp_path / "power.csv"
    output = PowerCsv(path)
    write(output, 36_000, 10)
    write(output, 36_010, 10, uuids=("A",))
    assert [(row["time_s"], row["uuid"]) for row in rows_of(path)] == [
        ("3600.000", "A"),
        ("3600.000", "B"),
        ("3601.000", "A"),
    ]


def test_a_full_disk_is_reported_once_and_ends_the_file(tmp_path):
    path = tmp_path / "power.csv"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    output = PowerCsv(path)
    row = PowerRow(0.0, "A", WATTS, 300.0, 0.0)
    assert output.write([row]) is None
    os.close(reader)
    assert "power.csv is incomplete" in output.write([row])
    assert output.write([row]) is None
    output.close()
