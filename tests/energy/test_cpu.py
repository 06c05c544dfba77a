"""The CPU as a device: the model, and the choice between counters and model."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.contracts.device import DeviceContract
from tests.energy.test_cpu_times import SELF, FakeProc
from zeusrun.energy.cpu import DescendantTimes, EstimatedCpu, RaplCpu, cpu_device
from zeusrun.errors import DeviceError, ExitCode, UsageError
from zeusrun.trial import EnergySource


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "proc").mkdir()
    return FakeProc(tmp_path / "proc")


@pytest.fixture
def estimated(proc, clock):
    times = DescendantTimes(SELF, proc.root, lambda: proc.reaped, clock)
    return EstimatedCpu("Fake CPU", 15.0, times)


class TestEstimatedCpu(DeviceContract):
    @pytest.fixture
    def device(self, estimated):
        return estimated

    @pytest.fixture
    def work(self, proc):
        def work():
            proc.reaped += 2.0

        return work

    @pytest.fixture
    def lose(self, proc, clock):
        def lose():
            shutil.rmtree(proc.root)
            clock.advance(1.0)

        return lose


def test_the_model_is_watts_per_core_times_cpu_seconds(proc, estimated):
    proc.reaped += 2.0
    assert estimated.read().energy_j == pytest.approx(30.0)
    assert estimated.energy_source is EnergySource.ESTIMATED
    assert estimated.max_power_w == 15.0 * len(os.sched_getaffinity(0))


def test_without_readable_counters_the_model_is_taken(tmp_path):
    device = cpu_device({}, tmp_path)
    assert isinstance(device, EstimatedCpu)
    assert device.max_power_w == 10.0 * len(os.sched_getaffinity(0))
    assert device.model
    assert not device.is_gpu
    assert device.read().energy_j >= 0.0


def test_the_watts_per_core_can_be_stated(tmp_path):
    device = cpu_device({"ZEUSRUN_CPU_WATTS_PER_CORE": "2.5"}, tmp_path)
    assert device.max_power_w == 2.5 * len(os.sched_getaffinity(0))


def test_readable_counters_come_first(tmp_path):
    package = tmp_path / "intel-rapl:0"
    package.mkdir()
    (package / "name").write_text("package-0\n", encoding="ascii")
    (package / "energy_uj").write_text("5000000\n", encoding="ascii")
    (package / "max_energy_range_uj").write_text("262143328850\n", encoding="ascii")
    device = cpu_device({"ZEUSRUN_CPU_WATTS_PER_CORE": "4"}, tmp_path)
    assert isinstance(device, RaplCpu)
    assert device.read().energy_j == 5.0
    assert device.max_power_w == 4.0 * os.cpu_count()


@pytest.mark.parametrize("text", ["", "ten", "0", "-1", "nan", "inf", "10W"])
def test_a_bad_number_of_watts_is_refused_naming_the_variable(tmp_path, text):
    with pytest.raises(UsageError, match="ZEUSRUN_CPU_WATTS_PER_CORE") as caught:
        cpu_device({"ZEUSRUN_CPU_WATTS_PER_CORE": text}, tmp_path)
    assert caught.value.exit_code is ExitCode.BAD_INPUT


def test_a_kernel_without_process_folders_is_a_device_error(tmp_path):
    with pytest.raises(DeviceError, match="/proc"):
        DescendantTimes(proc=tmp_path / "none")
