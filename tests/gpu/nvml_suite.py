"""NVML tests that need the fake library: ``test_nvml.py`` runs them in a Python of their own.

The library is found by its name once per process, so ``LD_LIBRARY_PATH`` must hold it from the
start, and a real driver must not be loaded beside it.
"""

from __future__ import annotations

import ctypes

import pytest

from tests.contracts.device import DeviceContract, LimitableDeviceContract
from zeusrun.errors import DeviceError, ExitCode
from zeusrun.gpu.monitor import EnergyMonitor
from zeusrun.gpu.nvml import NvmlGpu, _open_all, gpus_of_job
from zeusrun.gpu.power_limit import hold_power_limit
from zeusrun.gpu.visible import VisibleGpu
from zeusrun.trial import EnergySource

FACTS = {
    "gpus": 2,
    "different": 0,
    "mig": 0,
    "driver": 1,
    "withheld": -1,
    "lost": -1,
    "counter": 1,
    "power": 1,
    "permission": 1,
}
DEMAND_W = 250.0


class Machine:
    """The facts behind the fake library."""

    def __init__(self):
        self._library = ctypes.CDLL("libnvidia-ml.so.1")

    def set(self, **facts):
        for key, value in facts.items():
            self._library.fake_nvml_set(key.encode(), ctypes.c_long(value))

    def get(self, key):
        return self._library.fake_nvml_get(key.encode())

    def work(self, milliseconds):
        self.set(clock_ms=self.get("clock_ms") + milliseconds)

    def now_s(self):
        return self.get("clock_ms") / 1000


@pytest.fixture
def machine():
    machine = Machine()
    assert gpus_of_job({}, 0) == []
    NvmlGpu(0, "first").close()  # the library reads its environment once; facts set now stay
    machine.set(**FACTS)
    yield machine
    machine.set(**FACTS)
    for device in gpus_of_job({}, None):
        device.set_power_limit_w(400.0)
        device.close()


class NvmlContract(LimitableDeviceContract):
    facts: dict[str, int]

    @pytest.fixture
    def device(self, machine):
        machine.set(**self.facts)
        device, _ = gpus_of_job({}, None)
        return device

    @pytest.fixture
    def work(self, machine):
        return lambda: machine.work(1000)

    @pytest.fixture
    def lose(self, machine):
        return lambda: machine.set(lost=0)


class TestNvmlGpu(NvmlContract):
    facts = {}  # noqa: RUF012 - read only


class TestNvmlGpuWithoutCounter(NvmlContract):
    facts = {"counter": 0}  # noqa: RUF012 - read only


class TestNvmlGpuWithoutPower(DeviceContract):
    device, work, lose = NvmlContract.device, NvmlContract.work, NvmlContract.lose
    facts = {"power": 0}  # noqa: RUF012 - read only

    def test_it_cannot_be_limited(self, device):
        assert device.power_limit_range_w() is None
        with pytest.raises(DeviceError, match="no power limit"):
            device.set_power_limit_w(200.0)


def uuids(environment, count=None):
    devices = gpus_of_job(environment, count)
    for device in devices:
        device.close()
    return [device.uuid for device in devices]


def test_a_gpu_tells_who_it_is_in_watts_and_joules(machine):
    machine.work(1000)
    _, device = gpus_of_job({}, None)
    before_j = device.read().energy_j
    machine.work(2000)
    reading = device.read()
    assert device.uuid == "GPU-10000000-1111"
    assert device.model == "Fake A100"
    assert device.max_power_w == 400.0
    assert device.power_limit_range_w() == (100.0, 400.0)
    assert device.energy_source is EnergySource.COUNTER
    assert reading.power_w == DEMAND_W
    assert reading.power_limit_w == 400.0
    assert reading.energy_j - before_j == pytest.approx(2 * DEMAND_W)


@pytest.mark.parametrize(
    ("visible", "count", "expected"),
    [
        (None, None, ["GPU-00000000-1111", "GPU-10000000-1111", "GPU-20000000-1111"]),
        (None, 2, ["GPU-00000000-1111", "GPU-10000000-1111"]),
        ("2,0", None, ["GPU-20000000-1111", "GPU-00000000-1111"]),
        ("GPU-1", None, ["GPU-10000000-1111"]),
        ("", None, []),
        ("-1", None, []),
        ("0", 0, []),
    ],
)
def test_only_the_gpus_of_the_job_are_opened(machine, visible, count, expected):
    machine.set(gpus=3)
    assert uuids({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, count) == expected


def test_an_absent_gpu_is_named(machine):
    with pytest.raises(DeviceError, match="GPU 5") as caught:
        gpus_of_job({"CUDA_VISIBLE_DEVICES": "0,5"}, None)
    assert caught.value.exit_code is ExitCode.LAUNCH


def test_a_mig_instance_is_metered_as_its_gpu(machine):
    machine.set(mig=2)
    (device,) = gpus_of_job({"CUDA_VISIBLE_DEVICES": "MIG-10000000-5555"}, 1)
    assert device.uuid == "GPU-00000000-1111"
    assert device.model == "Fake A100 MIG 1g.5gb"
    assert device.read().power_w == DEMAND_W


def test_a_withheld_gpu_does_not_count(machine):
    machine.set(gpus=3, withheld=1)
    assert uuids({"CUDA_VISIBLE_DEVICES": "1"}) == ["GPU-20000000-1111"]


def test_different_gpus_need_an_order(machine):
    machine.set(different=1)
    with pytest.raises(DeviceError, match="PCI_BUS_ID"):
        gpus_of_job({}, 1)
    assert uuids({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, 1) == ["GPU-00000000-1111"]


def test_without_a_driver_or_a_gpu_there_are_no_gpus(machine):
    machine.set(driver=0)
    assert gpus_of_job({}, None) == []
    assert gpus_of_job({"CUDA_VISIBLE_DEVICES": "0"}, None) == []
    machine.set(driver=1, gpus=0)
    assert gpus_of_job({}, None) == []


def test_a_driver_that_does_not_start_says_why(machine):
    machine.set(driver=2)
    with pytest.raises(DeviceError, match="version mismatch"):
        gpus_of_job({}, None)


def test_a_gpu_lost_before_the_start_is_an_error(machine):
    machine.set(lost=1)
    with pytest.raises(DeviceError, match="GPU is lost"):
        gpus_of_job({}, None)


def test_a_negative_count_is_refused(machine):
    with pytest.raises(ValueError, match="-1"):
        gpus_of_job({}, -1)


def test_nvml_is_let_go_when_the_last_device_is_closed(machine):
    users = machine.get("users")
    devices = gpus_of_job({}, None)
    assert machine.get("users") == users + 2
    for device in devices:
        device.close()
    assert machine.get("users") == users


@pytest.mark.parametrize("facts", [{"lost": 0}, {"different": 1}])
def test_nvml_is_let_go_when_opening_fails(machine, facts):
    users = machine.get("users")
    machine.set(**facts)
    with pytest.raises(DeviceError):
        gpus_of_job({}, 1)
    assert machine.get("users") == users


def test_devices_opened_before_a_failing_one_are_closed(machine):
    users = machine.get("users")
    with pytest.raises(DeviceError, match="GPU 7"):
        _open_all([VisibleGpu(0, "Fake A100"), VisibleGpu(7, "absent")])
    assert machine.get("users") == users


def test_a_refused_limit_says_what_allows_it(machine):
    (device,) = gpus_of_job({}, 1)
    machine.set(permission=0)
    with pytest.raises(DeviceError, match="root or CAP_SYS_ADMIN") as caught:
        device.set_power_limit_w(200.0)
    assert "GPU-00000000-1111" in str(caught.value)
    assert device.read().power_limit_w == 400.0


def test_limits_held_are_restored_exactly(machine, tmp_path):
    devices = gpus_of_job({}, None)
    devices[1].set_power_limit_w(312.345)
    with hold_power_limit(
        devices, 200.0, record_path=tmp_path / "limits.json", lock_directory=tmp_path
    ):
        assert [device.read().power_limit_w for device in devices] == [200.0, 200.0]
    assert [device.read().power_limit_w for device in devices] == [400.0, 312.345]


def watch(machine, devices, seconds):
    monitor = EnergyMonitor(devices, None, clock=machine.now_s)
    start_s = machine.now_s()
    monitor.sample()
    for _ in range(seconds * 10):
        machine.work(100)
        monitor.sample()
    return monitor, monitor.energy_j(start_s, machine.now_s())


@pytest.mark.parametrize(
    ("counter", "source", "warnings"),
    [
        (0, EnergySource.INTEGRATED, 0),
        (1, EnergySource.COUNTER, 0),
        (2, EnergySource.INTEGRATED, 2),
    ],
)
def test_energy_is_right_whatever_the_counter_does(machine, counter, source, warnings):
    machine.set(counter=counter)
    monitor, energy_j = watch(machine, gpus_of_job({}, None), 10)
    assert energy_j == pytest.approx(10 * 2 * DEMAND_W)
    assert monitor.energy_source is source
    assert len(monitor.warnings) == warnings


def test_a_counter_that_restarts_in_mid_run_is_replaced(machine):
    devices = gpus_of_job({}, None)
    machine.work(100)
    monitor = EnergyMonitor(devices, None, clock=machine.now_s)
    start_s = machine.now_s()
    for number in range(51):
        machine.set(counter=3 if number > 25 else 1)
        monitor.sample()
        machine.work(100)
    assert monitor.energy_j(start_s, start_s + 5) == pytest.approx(5 * 2 * DEMAND_W)
    assert [("backwards" in warning) for warning in monitor.warnings] == [True, True]


def test_a_gpu_lost_in_mid_run_makes_energy_unknown(machine):
    devices = gpus_of_job({}, None)
    watch(machine, devices, 1)
    machine.set(lost=1)
    monitor, energy_j = watch(machine, devices, 1)
    assert energy_j is None
    (warning,) = monitor.warnings
    assert "GPU-10000000-1111" in warning
    assert "GPU is lost" in warning
