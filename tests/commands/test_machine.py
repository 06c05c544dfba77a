"""What a machine reports of its GPUs: the real ``pynvml`` over fake GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.gpu import fixtures
from tests.gpu.simulated import SimulatedDevice
from zeusrun.commands.machine import read_gpu
from zeusrun.gpu.power_limits.original_limits import LimitLock, LimitRecord, write_record

build_library, plain_library = fixtures.build_library, fixtures.plain_library
gpu_machine, clock = fixtures.gpu_machine, fixtures.clock
PROGRAM = """
import json, os
from zeusrun.commands.machine import read_gpus
print(json.dumps(read_gpus(lambda uuid: os.environ.get("HELD_BY"))))
"""


@pytest.fixture
def look(gpu_machine):
    """Return what is reported in an environment."""

    def run(**env):
        environment = {**os.environ, **gpu_machine.environment, **env}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=True
        )
        return json.loads(done.stdout)

    return run


def test_every_sensor_has_a_stable_name(look, gpu_machine):
    gpu_machine.set("work", 0)
    gpu_machine.set_limit_w(1, 150)
    first, second = look(HELD_BY="nightly-7-1")
    assert first == {
        "nvml_index": 0,
        "uuid": gpu_machine.uuid(0),
        "model": "Fake A100",
        "power_w": 250.0,
        "power_limit_w": 400.0,
        "energy_source": "counter",
        "utilization": first["utilization"],
        "temperature_c": first["temperature_c"],
        "throttle_reasons": [],
        "held_by": "nightly-7-1",
    }
    assert 0 < first["utilization"] <= 1
    assert (second["nvml_index"], second["uuid"]) == (1, gpu_machine.uuid(1))
    assert (second["power_w"], second["power_limit_w"]) == (150.0, 150.0)
    assert second["throttle_reasons"] == ["sw_power_cap"]


def test_what_a_gpu_does_not_tell_is_left_out(look, gpu_machine):
    for fact in ("power", "health", "processes", "counter"):
        gpu_machine.set(fact, 0)
    assert set(look()[0]) == {"nvml_index", "uuid", "model", "energy_source"}


def test_a_gpu_that_does_not_answer_says_so_and_hides_no_other(look, gpu_machine):
    gpu_machine.set("lost", 0)
    lost, well = sorted(look(), key=lambda gpu: "error" not in gpu)
    assert (well["uuid"], "error" in well) == (gpu_machine.uuid(1), False)
    assert (well["nvml_index"], "nvml_index" in lost) == (1, False)
    assert "GPU 0 does not answer: NVML says GPU is lost" in lost["error"]


def test_a_gpu_lost_after_it_was_opened_says_so(clock):
    device = SimulatedDevice(clock)
    device.fail("GPU is lost")
    device.nvml_index = 0
    read = read_gpu(device, lambda _: None)
    assert (read["uuid"], "power_w" in read) == ("SIM-0", False)
    assert "GPU is lost" in read["error"]


def test_doctor_lists_the_gpus_of_a_job_and_who_holds_their_limits(zeusrun, gpu_machine):
    gpus = zeusrun.home / "gpus"
    held, left = gpu_machine.uuid(0), gpu_machine.uuid(1)
    write_record(gpus, LimitRecord(held, 400.0, "nightly-7-1"))
    write_record(gpus, LimitRecord(left, 400.0, "nightly-6-1"))
    lock = LimitLock(held, gpus)
    assert lock.acquire()
    try:
        done = zeusrun("doctor", **gpu_machine.environment, COLUMNS="300")
    finally:
        lock.release()
    first, second = (line for line in done.stdout.splitlines() if "limit 400 of 400 W" in line)
    assert f"Fake A100 {held}: energy counter" in first
    assert first.rstrip().endswith("held by nightly-7-1")
    assert f"{left}: " in second
    assert "held by" not in second
    assert f"a dead run left the limit of {left} changed" in done.stdout


def test_doctor_lists_a_gpu_whose_record_cannot_be_read(zeusrun, gpu_machine):
    (zeusrun.home / "gpus").mkdir(parents=True, mode=0o700)
    (zeusrun.home / "gpus" / f"{gpu_machine.uuid(0)}.json").write_text("{")
    done = zeusrun("doctor", **gpu_machine.environment, COLUMNS="300")
    assert done.stdout.count("energy counter, limit 400 of 400 W") == 2
    assert "held by" not in done.stdout


@pytest.mark.parametrize("value", ["0,{0}", "8", "garbage", "{0},{0}", "GPU-none", "0,all"])
def test_a_variable_is_refused_by_doctor_as_by_a_submit(zeusrun, gpu_machine, value):
    environment = gpu_machine.environment | {
        "CUDA_VISIBLE_DEVICES": value.format(gpu_machine.uuid(0)), "COLUMNS": "1000"
    }  # fmt: skip
    submitted = zeusrun("submit", zeusrun.job(), "--dry-run", **environment)
    assert submitted.returncode == 5
    why = submitted.stderr.strip().splitlines()[-1].removeprefix("zeusrun: ")
    assert "CUDA_VISIBLE_DEVICES" in why
    assert why in zeusrun("doctor", **environment).stdout


def test_where_there_is_no_gpu_the_variable_says_nothing(zeusrun, gpu_machine):
    environment = {**gpu_machine.environment, "FAKE_NVML": "gpus=0", "FAKE_NVML_STATE": ""}
    done = zeusrun("doctor", **environment, CUDA_VISIBLE_DEVICES="garbage")
    assert "garbage" not in done.stdout + done.stderr


def test_records_that_cannot_be_read_are_told_by_repair_and_doctor(zeusrun):
    zeusrun.home.mkdir(exist_ok=True)
    (zeusrun.home / "gpus").write_text("a file where the folder should be")
    repair = zeusrun("repair")
    assert repair.returncode == 6
    assert "gpus is a file where zeusrun needs a directory" in repair.stderr
    doctor = " ".join(zeusrun("doctor", COLUMNS="300").stdout.split())
    assert "gpus is a file where zeusrun needs a directory" in doctor
    assert "put back" not in repair.stdout
