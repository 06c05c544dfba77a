"""A real GPU is read, and never set."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.contracts.device import DeviceContract
from zeusrun.energy.monitor import EnergyMonitor
from zeusrun.energy.sharing import ForeignProcesses
from zeusrun.gpu.nvml import gpus_of_job
from zeusrun.trial import EnergySource

pytestmark = pytest.mark.gpu

# A load that comes and goes, as training does, on the first GPU until its input ends.
LOAD = """
import sys, threading, time, torch
matrix = torch.randn(4096, 4096, device="cuda")
torch.cuda.synchronize()
print(flush=True)
stopped = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
while not stopped.is_set():
    until_s = time.monotonic() + 1.5
    while time.monotonic() < until_s:
        matrix @ matrix
        torch.cuda.synchronize()
    time.sleep(0.5)
"""


@pytest.fixture
def devices():
    devices = gpus_of_job({}, None)
    if not devices:
        pytest.skip("there is no NVIDIA GPU")
    yield devices
    for device in devices:
        device.close()


def test_a_real_gpu_draws_between_nothing_and_a_little_more_than_its_maximum(devices):
    for device in devices:
        reading = device.read()
        assert device.uuid.startswith("GPU-")
        assert reading.power_w > 0
        if device.max_power_w is not None:
            assert reading.power_w < 1.2 * device.max_power_w


def test_the_monitor_measures_real_gpus(devices):
    with EnergyMonitor(devices, None) as monitor:
        start_s = time.monotonic()
        time.sleep(3)  # a real device has a clock of its own
        end_s = time.monotonic()
    energy_j = monitor.energy_between(start_s, end_s)
    assert energy_j is not None, monitor.warnings
    assert 0 < energy_j < 1.2 * monitor.max_power_w * (end_s - start_s)
    assert monitor.energy_source.measured


@pytest.fixture
def load():
    pytest.importorskip("torch")
    with subprocess.Popen(
        [sys.executable, "-c", LOAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        if not child.stdout.readline():
            pytest.skip("torch has no CUDA here")
        yield child
        child.communicate()


def test_counter_and_integrated_power_agree_under_load_within_5_percent(devices, load):
    device = devices[0]
    if device.energy_source is not EnergySource.COUNTER:
        pytest.skip("this GPU has no energy counter")
    with EnergyMonitor([device], None) as monitor:
        time.sleep(2)  # both accounts have begun
        start_s = time.monotonic()
        time.sleep(30)
        end_s = time.monotonic()
        time.sleep(0.5)
    accounts = monitor.accounts_j(start_s, end_s)
    assert accounts.integrated_j == pytest.approx(accounts.counter_j, rel=0.05)


def test_a_real_gpu_lists_who_computes_on_it(devices, load):
    processes = devices[0].compute_processes()
    if not processes:
        pytest.skip("this driver tells a container nothing of processes")
    judge = ForeignProcesses()
    judge.check(frozenset())
    assert judge.check(processes) in (False, None)


def test_a_real_gpu_tells_how_it_fares(devices, load):
    health = devices[0].read().health
    assert health.temperature_c > 0
    assert health.sm_clock_mhz > 0
    assert health.throttle_reasons is not None


class TestRealGpu(DeviceContract):
    @pytest.fixture
    def device(self, devices):
        return devices[0]

    @pytest.fixture
    def work(self):
        return lambda: time.sleep(
            1.0
        )  # an idle GPU draws power; a slow counter is read thrice a second

    test_it_says_so_when_it_does_not_answer = None  # a real one is not to be broken
