"""Whole submits on two hosts with GPUs of their own: each has a node launcher and a fake driver."""

from __future__ import annotations

import csv
import json
import secrets
from pathlib import Path

import pytest

from tests.factories import AS_SSH

pytestmark = pytest.mark.torchrun
BATCH_SIZE = {"default": 64, "candidates": [32, 64]}


@pytest.fixture
def submit(zeusrun, plain_library):
    def run(other, **changes):
        """Run a job here and on a host b, whose driver shows ``other``."""
        machine = f"clock_ms=-1 serial={secrets.randbelow(10**7)}"
        fan_out = f"env FAKE_NVML='clock_ms=-1 {other}' {AS_SSH}"
        run_on = {"hosts": ["localhost", "b"], "nic": "lo", "fan_out": fan_out}
        job = zeusrun.job(
            run_on=run_on, batch_size=BATCH_SIZE, args=["--epoch-s", "0.5"], **changes
        )
        variables = {"FAKE_NVML": machine, "LD_LIBRARY_PATH": str(plain_library)}
        done = zeusrun("submit", job, "--json", **variables)
        result = json.loads(done.stdout.splitlines()[-1] if done.stdout else "null")
        return done, result and result["trials"][0]

    return run


@pytest.mark.long
def test_the_joules_of_both_hosts_add_up_and_a_limit_is_held_on_both(zeusrun, submit):
    serial = f"serial={secrets.randbelow(10**7)}"
    done, trial = submit(serial, power_limit={"mode": "fixed", "watts": 200})
    assert done.returncode == 0
    assert (trial["gpu_count"], trial["world_size"], trial["host_count"]) == (2, 2, 2)
    assert trial["energy_source"] == "counter"
    assert trial["max_power_w"] == 800.0
    # Each fake GPU draws 250 W, whatever runs.
    assert trial["energy_j"] == pytest.approx(500.0 * trial["time_s"], rel=0.25)
    (_, _, own_j), (name, ranks, other_j) = trial["hosts"]
    assert (name, ranks) == ("b", 1)
    assert own_j + other_j == pytest.approx(trial["energy_j"])
    assert own_j == pytest.approx(other_j, rel=0.1)
    assert trial["power_limit_w"] == 200.0
    with (Path(trial["run_dir"]) / "power.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len({row["uuid"] for row in rows}) == 2
    assert {row["power_limit_w"] for row in rows[4:-30]} == {"200.000"}
    assert not list((zeusrun.home / "gpus").glob("*.json"))


@pytest.mark.long
def test_with_a_host_without_gpu_the_energy_is_unknown_and_that_is_said_before(submit):
    done, trial = submit("gpus=0", objective={"eta_knob": 0})
    assert done.returncode == 0
    assert (trial["energy_j"], trial["energy_source"]) == (None, None)
    warned = " ".join(done.stderr.split())
    said = warned.index("so the energy of the run is unknown")
    assert said < warned.index("epoch 1")
    assert "the slower one decides the speed" in warned
