"""A real GPU is read, and never set."""

from __future__ import annotations

import time

import pytest

from tests.contracts.device import DeviceContract
from zeusrun.gpu.monitor import EnergyMonitor
from zeusrun.gpu.nvml import gpus_of_job

pytestmark = pytest.mark.gpu


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
    energy_j = monitor.energy_j(start_s, end_s)
    assert energy_j is not None, monitor.warnings
    assert 0 < energy_j < 1.2 * monitor.max_power_w * (end_s - start_s)
    assert monitor.energy_source.measured


class TestRealGpu(DeviceContract):
    @pytest.fixture
    def device(self, devices):
        return devices[0]

    @pytest.fixture
    def work(self):
        return lambda: time.sleep(0.3)  # an idle GPU draws power too

    test_it_says_so_when_it_does_not_answer = None  # a real one is not to be broken
