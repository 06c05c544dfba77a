"""Whole submits on a machine with two GPUs: the real ``pynvml`` over a library of our own."""

from __future__ import annotations

import csv
import json
import secrets
from pathlib import Path

import pytest


@pytest.fixture
def submit(zeusrun, plain_library):
    serial = secrets.randbelow(10**7)  # locks are the machine's

    def run(job, **variables):
        machine = {"FAKE_NVML": f"clock_ms=-1 serial={serial}"}
        variables = {**machine, "LD_LIBRARY_PATH": str(plain_library), **variables}
        done = zeusrun("submit", job, "--json", **variables)
        return done.returncode, json.loads(done.stdout.splitlines()[-1] if done.stdout else "null")

    return run


def read_power(trial):
    with (Path(trial["run_dir"]) / "power.csv").open() as file:
        return list(csv.DictReader(file))


def test_only_the_gpus_of_the_job_are_metered_and_billed(zeusrun, submit):
    code, result = submit(zeusrun.job(args=["--epoch-s", "0.4"]))
    (trial,) = result["trials"]
    assert code == 0
    assert trial["gpu_count"] == 1
    assert trial["gpu_model"]
    assert trial["energy_source"] == "counter"
    # The fake GPU draws 250 W, whatever runs.
    assert trial["energy_j"] == pytest.approx(250.0 * trial["time_s"], rel=0.2)
    assert trial["max_power_w"] == 400.0
    assert trial["power_limit_w"] == 400.0
    assert len({row["uuid"] for row in read_power(trial)}) == 1


@pytest.mark.parametrize("gpus", ["all", "auto"])
def test_an_elastic_job_takes_a_gpu_for_each_rank_that_it_may_have(zeusrun, submit, gpus):
    launch = {"nproc_per_node": 1, "gpus": gpus}
    code, result = submit(zeusrun.job(elastic={"min": 1, "max": 2}, launch=launch))
    (trial,) = result["trials"]
    assert (code, trial["gpu_count"], trial["world_size"]) == (0, 2, 1)
    assert len({row["uuid"] for row in read_power(trial)}) == 2


def test_the_jobs_own_visible_devices_say_which_gpus_are_its_own(zeusrun, submit):
    _, first = submit(zeusrun.job(env={"CUDA_VISIBLE_DEVICES": "0"}), CUDA_VISIBLE_DEVICES="1")
    _, second = submit(zeusrun.job(env={"CUDA_VISIBLE_DEVICES": "1"}))
    _, none = submit(zeusrun.job(env={"CUDA_VISIBLE_DEVICES": ""}))
    uuids = [read_power(result["trials"][0])[0]["uuid"] for result in (first, second)]
    assert uuids[0] != uuids[1]
    assert none["trials"][0]["gpu_count"] == 0


def test_a_fixed_power_limit_is_held_for_the_run_and_leaves_no_record(zeusrun, submit):
    job = zeusrun.job(args=["--epoch-s", "1"], power_limit={"mode": "fixed", "watts": 200})
    code, result = submit(job)
    (trial,) = result["trials"]
    assert (code, trial["power_limit_w"]) == (0, 200.0)
    limits = [float(row["power_limit_w"]) for row in read_power(trial)]
    assert set(limits[:-10]) == {200.0}  # the last samples come after it was put back
    assert not list((zeusrun.home / "gpus").glob("*.json"))


def test_a_fixed_limit_out_of_range_is_refused_before_anything_starts(zeusrun, submit):
    code, _ = submit(zeusrun.job(power_limit={"mode": "fixed", "watts": 900}))
    assert code == 5
    assert zeusrun.history() == []
