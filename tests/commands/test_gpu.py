"""``zeusrun gpu`` as a user runs it: the real ``pynvml`` over fake GPUs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.gpu import fixtures
from tests.gpu.simulated import SimulatedDevice
from zeusrun.gpu.power_limits.original_limits import LimitLock, LimitRecord, write_record
from zeusrun.gpu.snapshot import read_status

build_library, plain_library = fixtures.build_library, fixtures.plain_library
gpu_machine, clock = fixtures.gpu_machine, fixtures.clock


def nobody(_uuid):
    """Hold no power limit."""


@pytest.fixture
def look(zeusrun, gpu_machine):
    """Return what ``gpu --json`` says."""

    def run(*arguments, **env):
        done = zeusrun("gpu", "--json", *arguments, **gpu_machine.environment, **env)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    return run


def test_without_a_gpu_one_sentence_names_the_cpu_and_its_energy(zeusrun):
    done = zeusrun("gpu", COLUMNS="300", CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert line.startswith("No GPU (CUDA_VISIBLE_DEVICES=;")
    assert "energy" in line
    assert zeusrun("gpu", "--json", CUDA_VISIBLE_DEVICES="").stdout == "[]\n"


def test_json_tells_everything_under_stable_names(look, gpu_machine):
    gpu_machine.set("work", 0)
    first, second = look()
    assert first == {
        "cuda_index": 0,
        "uuid": gpu_machine.uuid(0),
        "model": "Fake A100",
        "power_w": 250.0,
        "power_limit_w": 400.0,
        "power_limit_range_w": [100.0, 400.0],
        "max_power_w": 400.0,
        "energy_source": "counter",
        "energy_j": first["energy_j"],
        "utilization": first["utilization"],
        "temperature_c": first["temperature_c"],
        "sm_clock_mhz": 1410,
        "memory_clock_mhz": 1215,
        "throttle_reasons": [],
        "processes": [],
        "caveat": None,
        "held_by": None,
        "error": None,
    }
    assert first["energy_j"] >= 0
    assert 0 < first["utilization"] <= 1
    assert (second["cuda_index"], second["uuid"]) == (1, gpu_machine.uuid(1))


def test_what_a_gpu_does_not_tell_is_null(look, gpu_machine):
    for fact in ("power", "health", "processes", "counter"):
        gpu_machine.set(fact, 0)
    told = {name for name, value in look()[0].items() if value is not None}
    assert told == {"cuda_index", "uuid", "model", "energy_source"}


def test_a_limit_that_binds_is_what_holds_the_clocks_back(look, gpu_machine):
    gpu_machine.set("work", 0)
    gpu_machine.set_limit_w(1, 150)
    first, second = look()
    assert (first["throttle_reasons"], second["throttle_reasons"]) == ([], ["sw_power_cap"])
    assert (second["power_w"], second["power_limit_w"]) == (150.0, 150.0)


def test_gpus_are_numbered_as_cuda_numbers_them_in_todays_environment(look, gpu_machine):
    gpu_machine.set("gpus", 3)
    seen = look(CUDA_VISIBLE_DEVICES="2,0")
    uuids = [gpu_machine.uuid(index) for index in range(3)]
    assert [(gpu["cuda_index"], gpu["uuid"]) for gpu in seen] == [(0, uuids[2]), (1, uuids[0])]
    every = look("--all", CUDA_VISIBLE_DEVICES="2,0")
    assert [(gpu["cuda_index"], gpu["uuid"]) for gpu in every] == [
        (1, uuids[0]),
        (None, uuids[1]),
        (0, uuids[2]),
    ]
    for nothing in ("", "all"):
        hidden = look("--all", CUDA_VISIBLE_DEVICES=nothing)
        assert [gpu["cuda_index"] for gpu in hidden] == [None] * 3


def test_which_of_different_gpus_comes_first_is_unknown_unless_cuda_is_told(look, gpu_machine):
    gpu_machine.set("different", 1)
    assert [gpu["cuda_index"] for gpu in look()] == [None, None]
    assert [gpu["cuda_index"] for gpu in look(CUDA_DEVICE_ORDER="PCI_BUS_ID")] == [0, 1]
    by_uuid = ",".join(gpu_machine.uuid(index) for index in (1, 0))
    assert [gpu["cuda_index"] for gpu in look(CUDA_VISIBLE_DEVICES=by_uuid)] == [0, 1]


def test_who_computes_on_a_gpu_is_told_by_id_and_name(look, gpu_machine):
    gpu_machine.set("foreign", os.getpid())
    name = Path(f"/proc/{os.getpid()}/comm").read_text().strip()
    (process,) = look()[0]["processes"]
    assert process["pid"] == os.getpid()
    assert process["name"].startswith(name)


def test_a_process_that_is_not_there_has_no_name(look, gpu_machine):
    gpu_machine.set("foreign", 2**22 + 1)
    assert [p["name"] for p in look()[0]["processes"]] in ([None], [])


def test_a_gpu_that_does_not_answer_is_a_row_that_says_so(look, gpu_machine, zeusrun):
    gpu_machine.set("lost", 1)
    both = f"{gpu_machine.uuid(0)},{gpu_machine.uuid(1)}"
    well, lost = look(CUDA_VISIBLE_DEVICES=both)
    assert (well["uuid"], well["error"]) == (gpu_machine.uuid(0), None)
    assert (lost["cuda_index"], lost["power_w"]) == (None, None)
    assert "GPU 1 does not answer: NVML says GPU is lost" in lost["error"]
    done = zeusrun("gpu", **gpu_machine.environment, CUDA_VISIBLE_DEVICES=both)
    assert "GPU 1 does not answer" in " ".join(done.stdout.split())
    assert done.returncode == 0


def test_a_lost_gpu_hides_no_other_where_all_are_visible(look, gpu_machine):
    gpu_machine.set("lost", 0)
    for arguments in ([], ["--all"]):
        well, lost = look(*arguments)
        assert (well["uuid"], well["error"]) == (gpu_machine.uuid(1), None)
        assert (well["cuda_index"], lost["cuda_index"]) == (None, None)
        assert "GPU 0 does not answer: NVML says GPU is lost" in lost["error"]


def test_all_shows_the_gpus_that_mig_instances_hide(look, gpu_machine):
    gpu_machine.set("mig", 2)
    assert len(look()) == 1
    uuids = [gpu_machine.uuid(index) for index in range(2)]
    assert [(gpu["cuda_index"], gpu["uuid"]) for gpu in look("--all")] == [
        (0, uuids[0]),
        (None, uuids[1]),
    ]


def test_a_gpu_lost_after_it_was_opened_is_a_row_that_says_so(clock):
    device = SimulatedDevice(clock)
    device.fail("GPU is lost")
    status = read_status(device, {device.uuid: 0}, nobody)
    assert (status.uuid, status.power_w, status.max_power_w) == ("SIM-0", None, 300.0)
    assert "GPU is lost" in status.error


def test_an_instance_of_a_gpu_has_a_caveat(zeusrun, look, gpu_machine):
    gpu_machine.set("mig", 2)
    instance = f"MIG-0{gpu_machine.get('serial'):07d}-5555"
    gpus = look(CUDA_VISIBLE_DEVICES="0")
    assert "MIG" in gpus[0]["model"], instance
    assert gpus[0]["caveat"]
    done = zeusrun("gpu", **gpu_machine.environment, CUDA_VISIBLE_DEVICES="0")
    assert "· GPU 0: " in done.stdout


def test_whose_limit_it_is_and_who_has_died_with_it_is_told(look, zeusrun, gpu_machine):
    gpus = zeusrun.home / "gpus"
    held, left = gpu_machine.uuid(0), gpu_machine.uuid(1)
    write_record(gpus, LimitRecord(held, 400.0, "nightly-7-1"))
    write_record(gpus, LimitRecord(left, 400.0, "nightly-6-1"))
    lock = LimitLock(held, gpus)
    assert lock.acquire()
    try:
        holders = [gpu["held_by"] for gpu in look()]
        done = zeusrun("gpu", **gpu_machine.environment, COLUMNS="80")
    finally:
        lock.release()
    assert holders == ["nightly-7-1", "nightly-6-1, dead: `zeusrun repair`"]
    assert "held by" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_variable_that_is_not_usable_ends_in_a_sentence(zeusrun, gpu_machine):
    done = zeusrun("gpu", **gpu_machine.environment, CUDA_VISIBLE_DEVICES="0,all")
    assert done.returncode == 5
    assert "'all' is neither an index nor a GPU or MIG UUID" in done.stderr


def test_where_there_is_no_gpu_the_variable_says_nothing(zeusrun, gpu_machine):
    environment = {**gpu_machine.environment, "FAKE_NVML": "gpus=0", "FAKE_NVML_STATE": ""}
    done = zeusrun("gpu", **environment, CUDA_VISIBLE_DEVICES="garbage")
    assert done.returncode == zeusrun("gpu", **environment).returncode
    assert "garbage" not in done.stderr


@pytest.mark.parametrize("value", ["0,{0}", "8", "garbage", "{0},{0}", "GPU-none"])
def test_a_variable_is_refused_as_a_submit_refuses_it(zeusrun, gpu_machine, value):
    environment = gpu_machine.environment | {
        "CUDA_VISIBLE_DEVICES": value.format(gpu_machine.uuid(0))
    }
    shown = zeusrun("gpu", **environment)
    submitted = zeusrun("submit", zeusrun.job(), "--dry-run", **environment)
    assert (shown.returncode, submitted.returncode) == (5, 5)
    assert shown.stderr == submitted.stderr
    assert "CUDA_VISIBLE_DEVICES" in shown.stderr


def test_records_that_cannot_be_read_are_told_by_repair_and_doctor(zeusrun):
    zeusrun.home.mkdir(exist_ok=True)
    (zeusrun.home / "gpus").write_text("a file where the folder should be")
    repair = zeusrun("repair")
    assert repair.returncode == 6
    assert "gpus is a file where zeusrun needs a directory" in repair.stderr
    doctor = " ".join(zeusrun("doctor", COLUMNS="300").stdout.split())
    assert "gpus is a file where zeusrun needs a directory" in doctor
    assert "put back" not in repair.stdout
