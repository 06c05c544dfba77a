"""Rows of emissions.csv, in CodeCarbon's own columns and units."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from tests.factories import DONE, PREEMPTED, build_trial
from zeusrun.export.codecarbon import COLUMNS, emission_rows
from zeusrun.view.export import csv_text

# The fields of EmissionsData, in codecarbon/output_methods/emissions_data.py of the wheels of
# codecarbon 3.3.0 and 3.3.2: FileOutput writes them in this order.
EMISSIONS_DATA = [
    *("timestamp", "project_name", "run_id", "experiment_id", "duration", "emissions"),
    *("emissions_rate", "cpu_power", "gpu_power", "ram_power", "cpu_energy", "gpu_energy"),
    *("ram_energy", "energy_consumed", "water_consumed", "country_name", "country_iso_code"),
    *("region", "cloud_provider", "cloud_region", "os", "python_version", "codecarbon_version"),
    *("cpu_count", "cpu_model", "gpu_count", "gpu_model", "longitude", "latitude"),
    *("ram_total_size", "tracking_mode", "cpu_utilization_percent", "gpu_utilization_percent"),
    *("ram_utilization_percent", "ram_used_gb", "on_cloud", "pue", "wue"),
]


def read(*trials):
    return list(csv.DictReader(io.StringIO(csv_text(COLUMNS, emission_rows(trials)))))


def test_the_header_is_that_of_codecarbon():
    assert csv_text(COLUMNS, []).strip().split(",") == EMISSIONS_DATA


def test_units_are_those_of_codecarbon():
    outcome = replace(DONE, time_s=100.0, energy_j=3.6e6, carbon_g=480.0, pue=1.2)
    trial = build_trial(3, gpu_count=2, gpu_model="NVIDIA H100").finish(outcome)
    (row,) = read(trial)
    numbers = {
        "duration": 100.0,
        "energy_consumed": 1.2,  # kilowatt-hours; CodeCarbon multiplies by the PUE, too
        "gpu_energy": 1.2,
        "gpu_power": 43200.0,
        "emissions": 0.48,  # kilograms
        "emissions_rate": 0.0048,
        "gpu_count": 2,
        "pue": 1.2,
    }
    assert {name: float(row[name]) for name in numbers} == pytest.approx(numbers)
    assert (row["project_name"], row["run_id"]) == ("job", "job-3-1")
    assert row["gpu_model"] == "2 x NVIDIA H100"


def test_what_zeusrun_does_not_know_is_empty():
    (row,) = read(build_trial(1).finish(replace(DONE, energy_j=None, time_s=None)))
    known = {name for name, cell in row.items() if cell}
    assert known == {"timestamp", "project_name", "run_id", "gpu_count"}


def test_a_cpu_has_its_own_columns():
    (row,) = read(build_trial(1).finish(DONE))
    assert float(row["cpu_power"]) == 10.0
    assert row["cpu_energy"] == row["energy_consumed"] != ""
    assert (row["gpu_power"], row["gpu_energy"]) == ("", "")


def test_a_run_that_has_not_ended_has_no_row():
    assert read(build_trial(1), build_trial(2).finish(PREEMPTED)) == []


def test_a_time_is_local_and_has_no_offset(monkeypatch):
    (row,) = read(build_trial(1).finish(replace(DONE, finished_at="no time")))
    assert row["timestamp"] == ""
    (row,) = read(build_trial(1).finish(DONE))
    assert len(row["timestamp"]) == len("2025-06-01T13:00:00")
