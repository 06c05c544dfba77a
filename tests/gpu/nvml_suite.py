"""NVML tests that need the fake library: ``test_nvml.py`` runs them in a Python of their own.

The library is found by its name once per process, so ``LD_LIBRARY_PATH`` must hold it from the
start, and a real driver must not be loaded beside it.
"""

from __future__ import annotations

import ctypes
import os
import time

import pynvml
import pytest

from tests.contracts.device import DeviceContract, LimitableDeviceContract
from tests.gpu.fake_zeusd import running_zeusd
from zeusrun.energy.device import Health
from zeusrun.energy.monitor import EnergyMonitor
from zeusrun.energy.sharing import ForeignProcesses
from zeusrun.errors import DeviceError, ExitCode, LimitRefusedError
from zeusrun.gpu.cuda_visible import VisibleGpu
from zeusrun.gpu.nvml import gpu_by_uuid, gpus_of_job, gpus_of_machine
from zeusrun.gpu.nvml_gpu import NvmlGpu, open_all
from zeusrun.gpu.power_limits.original_limits import set_limit
from zeusrun.trial import EnergySource

FACTS = {
    "gpus": 2,
    "pci": 1,
    "different": 0,
    "mig": 0,
    "driver": 1,
    "withheld": -1,
    "lost": -1,
    "broken": -1,
    "broken_code": 999,
    "counter_code": 0,
    "power_code": 0,
    "limit_code": 0,
    "counter": 1,
    "power": 1,
    "permission": 1,
    "serial": 0,
    "grace": 0,
    "counter_ms": 100,
    "instant": 1,
    "average": 0,
    "health": 1,
    "foreign": 0,
    "processes": 1,
    "slow_us": 0,
    "work": 0,
    "lost_after_ms": -1,
}
INSUFFICIENT_POWER, TIMEOUT, IRQ_ISSUE, GPU_IS_LOST, UNKNOWN = 8, 10, 11, 15, 999
DEMAND_W = 250.0
IDLE_W = 60.0
MODULE_W = 50.0


class Machine:
    """The facts behind the fake library."""

    def __init__(self):
        self._library = ctypes.CDLL("libnvidia-ml.so.1")

    def set(self, **facts):
        for key, value in facts.items():
            self._library.fake_nvml_set(key.encode(), ctypes.c_long(value))

    def get(self, key):
        return self._library.fake_nvml_get(key.encode())

    def restart(self):
        self.set(restart=self.get("restart") + 1)

    def shut_down(self):
        self._library.nvmlShutdown()

    def force_limit(self, gpu, milliwatts):
        """Set a limit past every permission; return whether it is in range."""
        return not self._library.fake_nvml_force_limit(gpu, milliwatts)

    def keep_busy(self, gpu, seconds):
        self._library.fake_nvml_work(gpu, ctypes.c_double(seconds))

    def work(self, milliseconds):
        self.set(clock_ms=self.get("clock_ms") + milliseconds)

    def now_s(self):
        return self.get("clock_ms") / 1000


@pytest.fixture
def machine():
    machine = Machine()
    assert gpus_of_job({}, 0) == []
    NvmlGpu(
        pynvml, VisibleGpu(0, "first")
    ).close()  # the library reads its environment once; facts set now stay
    machine.set(**FACTS)
    yield machine
    machine.keep_busy(0, -1.0)
    machine.set(**FACTS)
    for device in gpus_of_job({}, None):
        device.set_power_limit_w(400.0)
        device.close()


class NvmlContract(LimitableDeviceContract):
    facts: dict[str, int]

    @pytest.fixture
    def device(self, machine):
        machine.set(**self.facts)
        device, other = gpus_of_job({}, None)
        other.close()
        yield device
        device.close()

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


class TestNvmlGpuWithoutFields(NvmlContract):
    facts = {"instant": 0, "average": 1}  # noqa: RUF012 - read only

    test_it_draws_no_more_than_its_limit = None  # its power is a mean that still falls


class TestGraceHopper(NvmlContract):
    facts = {"grace": 1}  # noqa: RUF012 - read only


class TestNvmlGpuWithoutHealth(NvmlContract):
    facts = {"health": 0, "processes": 0}  # noqa: RUF012 - read only


class TestNvmlGpuWithZeusd(NvmlContract):
    facts = {}  # noqa: RUF012 - read only

    @pytest.fixture
    def device(self, machine, tmp_path):
        machine.set(permission=0)
        with running_zeusd(tmp_path / "sock", machine.force_limit):
            device, other = gpus_of_job({"ZEUSD_SOCK_PATH": str(tmp_path / "sock")}, None)
            other.close()
            yield device
            device.close()


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


@pytest.mark.parametrize(("pci", "first"), [(1, 0), (2, 1), (0, 0)])
@pytest.mark.parametrize("order", [{"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {}])
def test_indices_count_gpus_by_their_pci_address(machine, pci, first, order):
    machine.set(pci=pci)
    expected = [f"GPU-{first}0000000-1111", f"GPU-{1 - first}0000000-1111"]
    assert uuids(order) == expected
    assert uuids({**order, "CUDA_VISIBLE_DEVICES": "1,0"}) == expected[::-1]


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
        open_all(pynvml, [VisibleGpu(0, "Fake A100"), VisibleGpu(7, "absent")], None)
    assert machine.get("users") == users


def test_a_refused_limit_says_what_allows_it(machine):
    (device,) = gpus_of_job({}, 1)
    machine.set(permission=0)
    with pytest.raises(
        LimitRefusedError, match="root or with CAP_SYS_ADMIN, or start zeusd"
    ) as caught:
        device.set_power_limit_w(200.0)
    assert "GPU-00000000-1111" in str(caught.value)
    assert device.read().power_limit_w == 400.0


def watch(machine, devices, seconds):
    monitor = EnergyMonitor(devices, None, clock=machine.now_s)
    start_s = machine.now_s()
    monitor.sample()
    for _ in range(seconds * 10):
        machine.work(100)
        monitor.sample()
    return monitor, monitor.energy_between(start_s, machine.now_s())


@pytest.mark.parametrize(
    ("counter", "source", "warnings"),
    [
        (0, EnergySource.INTEGRATED, 1),
        (1, EnergySource.COUNTER, 0),
        (2, EnergySource.INTEGRATED, 1),
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
    assert monitor.energy_between(start_s, start_s + 5) == pytest.approx(5 * 2 * DEMAND_W)
    (warning,) = monitor.warnings
    assert "Fake A100 (GPU-00000000-1111) and 1 more jumped from" in warning


def test_a_gpu_lost_in_mid_run_makes_energy_unknown(machine):
    devices = gpus_of_job({}, None)
    watch(machine, devices, 1)
    machine.set(lost=1)
    monitor, energy_j = watch(machine, devices, 6)
    assert energy_j is None
    (warning,) = monitor.warnings
    assert "GPU-10000000-1111" in warning
    assert "GPU is lost" in warning


# Power


@pytest.mark.parametrize(
    ("facts", "expected_w"),
    [
        ({"average": 1}, DEMAND_W),  # instant power from field values
        ({"average": 1, "instant": 0}, (DEMAND_W + IDLE_W) / 2),  # power usage
        ({"average": 1, "instant": 2}, (DEMAND_W + IDLE_W) / 2),
        ({"average": 1, "instant": 3}, (DEMAND_W + IDLE_W) / 2),  # instant power is always 0
        ({"grace": 1}, DEMAND_W),
        ({"grace": 1, "instant": 2}, (DEMAND_W + IDLE_W) / 2),  # the GPU's average
        ({"grace": 1, "instant": 0}, None),  # all that is told is the module's
    ],
)
def test_power_is_the_gpus_own_and_as_instant_as_can_be(machine, facts, expected_w):
    machine.set(work=1, **facts)
    machine.work(2000)  # idle
    device, other = gpus_of_job({}, None)
    other.close()
    machine.keep_busy(0, 10.0)
    machine.work(500)
    power_w = device.read().power_w
    assert power_w == (None if expected_w is None else pytest.approx(expected_w, abs=0.01))


def test_a_source_of_power_that_ends_in_mid_run_gives_way_to_the_next(machine):
    machine.set(grace=1)
    (grace,) = gpus_of_job({}, 1)
    machine.set(grace=0)
    (device,) = gpus_of_job({}, 1)
    machine.set(instant=0)
    assert device.read().power_w == DEMAND_W
    machine.set(grace=1)
    assert device.read().power_w == DEMAND_W + MODULE_W  # power usage is what it asks now
    assert grace.read().power_w is None


@pytest.mark.parametrize("facts", [{}, {"grace": 1}, {"instant": 0}])
def test_a_power_reading_of_zero_is_unknown(machine, facts):
    machine.set(power=2, **facts)
    device, _ = gpus_of_job({}, None)
    reading = device.read()
    assert reading.power_w is None
    assert reading.energy_j is not None


def test_power_that_is_zero_for_a_while_is_told_again(machine):
    machine.set(power=2)
    device, _ = gpus_of_job({}, None)
    assert device.read().power_w is None
    machine.set(power=1)
    assert device.read().power_w == DEMAND_W


@pytest.mark.parametrize("counter", [0, 2])
def test_a_gpu_with_a_dead_power_sensor_and_no_counter_has_no_energy(machine, counter):
    machine.set(power=2, counter=counter)
    monitor, energy_j = watch(machine, gpus_of_job({}, 1), 10)
    assert (energy_j, monitor.energy_source) == (None, None)
    (warning,) = monitor.warnings
    assert "GPU-00000000-1111" in warning
    assert "unknown" in warning


def test_power_that_falls_to_zero_in_mid_run_is_no_smaller_bill(machine):
    machine.set(counter=0)
    (device,) = gpus_of_job({}, 1)
    monitor = EnergyMonitor([device], None, period_s=3600.0, clock=machine.now_s)
    start_s = machine.now_s()
    with monitor:
        for number in range(400):
            machine.set(power=1 if number < 200 else 2)
            machine.work(100)
            monitor.sample()
    assert monitor.energy_between(start_s, machine.now_s()) is None
    assert "reported no power for too long" in monitor.warnings[-1]


@pytest.mark.parametrize("code", [UNKNOWN, TIMEOUT])
@pytest.mark.parametrize(
    ("question", "unknown"),
    [("counter_code", "energy_j"), ("power_code", "power_w"), ("limit_code", "power_limit_w")],
)
def test_a_question_that_fails_is_unknown_and_costs_nothing_else(
    machine, clock, question, unknown, code
):
    device = NvmlGpu(pynvml, VisibleGpu(0, "Fake A100"), clock=clock)
    whole = vars(device.read())
    clock.advance(1.0)
    machine.set(**{question: code})
    assert vars(device.read()) == {**whole, unknown: None}
    machine.set(**{question: 0})
    clock.advance(1.0)
    assert vars(device.read()) == whole


@pytest.mark.parametrize("question", ["counter_code", "power_code", "limit_code"])
def test_a_question_that_fails_at_the_start_keeps_no_job_from_starting(machine, question):
    machine.set(**{question: UNKNOWN})
    monitor, energy_j = watch(machine, gpus_of_job({}, 1), 10)
    assert energy_j == pytest.approx(10 * DEMAND_W)
    assert all("power is integrated instead" in warning for warning in monitor.warnings)


@pytest.mark.parametrize("facts", [{"counter_code": UNKNOWN}, {"counter": 0}])
def test_a_gpu_whose_counter_and_power_both_fail_does_not_answer(machine, facts):
    device, _ = gpus_of_job({}, None)
    machine.set(power_code=UNKNOWN, **facts)
    with pytest.raises(DeviceError, match="GPU-00000000-1111"):
        device.read()


@pytest.mark.parametrize(
    ("failing", "source"),
    [(range(50, 51), EnergySource.COUNTER), (range(50, 100), EnergySource.INTEGRATED)],
)
def test_a_counter_that_fails_in_mid_run_for_more_than_a_moment_gives_way_to_sampled_power(
    machine, failing, source
):
    (device,) = gpus_of_job({}, 1)
    monitor = EnergyMonitor([device], None, clock=machine.now_s)
    start_s = machine.now_s()
    monitor.sample()
    for number in range(100):
        machine.set(counter_code=UNKNOWN if number in failing else 0)
        machine.work(100)
        monitor.sample()
    assert monitor.energy_between(start_s, machine.now_s()) == pytest.approx(10 * DEMAND_W)
    assert monitor.energy_source is source
    told = [source is EnergySource.INTEGRATED] * len(monitor.warnings)
    assert told == ["sampled power is integrated" in warning for warning in monitor.warnings]
    assert len(told) == (source is EnergySource.INTEGRATED)


# Health


def test_health_is_told(machine):
    device, _ = gpus_of_job({}, None)
    assert device.read().health == Health(
        utilization=0.98,
        temperature_c=55,
        sm_clock_mhz=1410,
        memory_clock_mhz=1215,
        throttle_reasons=(),
    )
    device.set_power_limit_w(150.0)
    health = device.read().health
    assert health.throttle_reasons == ("sw_power_cap",)
    assert health.sm_clock_mhz < 1410
    assert health.temperature_c == 45


def test_an_idle_gpu_says_so(machine):
    machine.set(work=1)
    device, _ = gpus_of_job({}, None)
    reading = device.read()
    assert reading.power_w == IDLE_W
    assert reading.health.utilization == 0.0
    assert reading.health.throttle_reasons == ("gpu_idle",)


def test_health_that_is_not_supported_is_unknown(machine):
    machine.set(health=0)
    device, _ = gpus_of_job({}, None)
    assert device.read().health == Health()


def test_limit_and_health_are_asked_for_every_half_second(machine, clock):
    device = NvmlGpu(pynvml, VisibleGpu(0, "Fake A100"), clock=clock)
    device.read()
    machine.force_limit(0, 150_000)
    clock.advance(0.4)
    reading = device.read()
    assert (reading.power_w, reading.power_limit_w) == (150.0, 400.0)
    clock.advance(0.2)
    reading = device.read()
    assert (reading.power_limit_w, reading.health.temperature_c) == (150.0, 45)


def test_a_counter_that_is_slow_to_answer_is_asked_less_often(machine, clock, monkeypatch):
    ask, asked_s = pynvml.nvmlDeviceGetTotalEnergyConsumption, []

    def slow(handle):
        asked_s.append(clock())
        until_s = time.thread_time() + 0.003
        while time.thread_time() < until_s:
            pass
        return ask(handle)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", slow)
    device = NvmlGpu(pynvml, VisibleGpu(0, "Fake A100"), clock=clock)
    asked_s.clear()
    until_s = clock() + 10.0
    while clock() < until_s:
        assert device.read().energy_j is not None
        clock.advance(0.1)
    assert 10.0 / 0.6 < len(asked_s) <= 10.0 / 0.3 + 1


def test_a_limit_set_by_itself_is_told_at_once(machine, clock):
    device = NvmlGpu(pynvml, VisibleGpu(0, "Fake A100"), clock=clock)
    device.read()
    device.set_power_limit_w(200.0)
    assert device.read().power_limit_w == 200.0


# Lost, restarted, slow


def test_a_gpu_that_is_lost_says_which_and_why(machine):
    device, _ = gpus_of_job({}, None)
    machine.set(lost_after_ms=500)
    assert device.read().power_w == DEMAND_W
    machine.work(500)
    for ask in (device.read, device.compute_processes, device.power_limit_range_w):
        with pytest.raises(
            DeviceError, match=r"Fake A100 \(GPU-00000000-1111\).*GPU is lost \(GPU 0: .*reset -i 0"
        ):
            ask()


def test_a_lost_gpu_is_nothing_to_a_job_that_names_others(machine):
    machine.set(lost=0)
    assert uuids({"CUDA_VISIBLE_DEVICES": "GPU-1"}) == ["GPU-10000000-1111"]
    named = r"'GPU-0' names no GPU .* It may be this one: GPU 0 does not answer: NVML says"
    with pytest.raises(DeviceError, match=named):
        gpus_of_job({"CUDA_VISIBLE_DEVICES": "GPU-0"}, None)
    with pytest.raises(DeviceError, match=r"GPU 0 does not answer: .*-reset -i 0.*others by UUID"):
        gpus_of_job({"CUDA_VISIBLE_DEVICES": "1"}, None)


def test_a_gpu_by_its_uuid_is_opened_whatever_is_visible(machine):
    device = gpu_by_uuid("GPU-10000000-1111", {"CUDA_VISIBLE_DEVICES": ""})
    assert device.uuid == "GPU-10000000-1111"
    device.close()


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"lost": 1}, "is not found. It may be this one: GPU 1 does not answer: NVML says"),
        ({"gpus": 1}, "is not in this machine; `nvidia-smi -L` lists the GPUs"),
    ],
)
def test_a_gpu_that_is_not_there_by_its_uuid_is_named_without_a_variable(machine, facts, said):
    users = machine.get("users")
    machine.set(**facts)
    with pytest.raises(DeviceError) as caught:
        gpu_by_uuid("GPU-10000000-1111", {})
    assert str(caught.value).startswith(f"GPU-10000000-1111 {said}")
    assert "CUDA_VISIBLE_DEVICES" not in str(caught.value)
    assert machine.get("users") == users


@pytest.mark.parametrize("code", [GPU_IS_LOST, INSUFFICIENT_POWER, IRQ_ISSUE, UNKNOWN])
def test_a_broken_gpu_is_nothing_to_a_job_that_names_others(machine, code):
    machine.set(broken=0, broken_code=code)
    assert uuids({"CUDA_VISIBLE_DEVICES": "GPU-1"}) == ["GPU-10000000-1111"]
    broken, working = sorted(gpus_of_machine(), key=lambda gpu: isinstance(gpu, NvmlGpu))
    assert isinstance(broken, DeviceError)
    assert working.uuid == "GPU-10000000-1111"
    with pytest.raises(DeviceError, match="GPU 0 does not answer: NVML says") as caught:
        gpus_of_job({"CUDA_VISIBLE_DEVICES": "1"}, None)
    assert ("gpu-reset" in str(caught.value)) == (code == GPU_IS_LOST)


def test_after_a_driver_restart_a_device_says_so_and_a_new_one_counts_from_zero(machine):
    users = machine.get("users")
    machine.work(10_000)
    devices = gpus_of_job({}, None)
    machine.restart()
    for device in devices:
        with pytest.raises(DeviceError, match=f"{device.uuid}.*its driver was restarted"):
            device.read()
        device.close()
    while machine.get("users") > 0:  # other tests have left devices open
        machine.shut_down()
    device, _ = gpus_of_job({}, None)
    assert device.read().energy_j == 0.0
    for _ in range(users):
        gpus_of_job({}, 1)


def test_slow_calls_are_waited_for(machine):
    machine.set(slow_us=1000)
    device, _ = gpus_of_job({}, None)
    assert device.read().power_w == DEMAND_W


# Who computes, and where


def test_processes_are_listed(machine):
    device, other = gpus_of_job({}, None)
    assert device.compute_processes() == frozenset()
    machine.keep_busy(0, 1.0)
    assert device.compute_processes() == {os.getpid()}
    machine.set(foreign=1)
    assert device.compute_processes() == {1, os.getpid()}
    assert other.compute_processes() == {1}
    machine.set(processes=0)
    assert device.compute_processes() is None


def test_a_foreign_process_is_told_from_our_own(machine):
    (device,) = gpus_of_job({}, 1)
    machine.keep_busy(0, 1.0)
    judge = ForeignProcesses(first_namespace=True)
    assert judge.check(device.compute_processes()) is False
    machine.set(foreign=1)
    assert judge.check(device.compute_processes()) is True


def test_a_mig_instance_says_whose_energy_it_tells(machine):
    machine.set(mig=2)
    (device,) = gpus_of_job({"CUDA_VISIBLE_DEVICES": "MIG-10000000-5555"}, 1)
    assert "GPU-00000000-1111" in device.caveat
    assert "whole GPU" in device.caveat
    assert device.read().health.utilization is None  # NVML does not tell it of a GPU with MIG
    machine.set(mig=0)
    (device,) = gpus_of_job({}, 1)
    assert device.caveat is None


def test_by_index_a_gpu_with_mig_is_its_first_instance_and_the_only_one(machine):
    machine.set(mig=2, gpus=3)
    (device,) = gpus_of_job({}, None)
    assert (device.uuid, device.model) == ("GPU-00000000-1111", "Fake A100 MIG 1g.5gb")


# zeusd


@pytest.mark.parametrize("version", ["today", "0.5.0", "0.4"])
def test_without_permission_an_existing_zeusd_sets_limits(machine, tmp_path, version):
    machine.set(permission=0)
    with running_zeusd(tmp_path / "sock", machine.force_limit, version=version):
        _, device = gpus_of_job({"ZEUSD_SOCK_PATH": str(tmp_path / "sock")}, None)
        device.set_power_limit_w(200.0)
        assert device.read().power_limit_w == 200.0
    with pytest.raises(LimitRefusedError, match=r"zeusd .*does not answer.*CAP_SYS_ADMIN"):
        device.set_power_limit_w(300.0)


def test_with_permission_zeusd_is_not_asked(machine, tmp_path):
    with running_zeusd(tmp_path / "sock", machine.force_limit) as server:
        (device,) = gpus_of_job({"ZEUSD_SOCK_PATH": str(tmp_path / "sock")}, 1)
        device.set_power_limit_w(200.0)
        assert server.asked == []


def test_a_zeusd_with_other_gpus_is_not_trusted(machine, tmp_path):
    machine.set(permission=0)
    with running_zeusd(
        tmp_path / "sock", machine.force_limit, version="0.5.0", gpu_ids=[0, 1, 2, 3]
    ):
        (device,) = gpus_of_job({"ZEUSD_SOCK_PATH": str(tmp_path / "sock")}, 1)
        with pytest.raises(LimitRefusedError, match="has 4 GPUs and this process 2"):
            device.set_power_limit_w(200.0)
    assert device.read().power_limit_w == 400.0


def test_a_zeusd_that_numbers_gpus_otherwise_sets_the_right_one_by_its_address(machine, tmp_path):
    machine.set(permission=0, pci=2)
    with running_zeusd(
        tmp_path / "sock", lambda gpu, mw: machine.force_limit(1 - gpu, mw)
    ) as server:
        server.buses = {0: 8, 1: 9}
        first, second = gpus_of_job({"ZEUSD_SOCK_PATH": str(tmp_path / "sock")}, None)
        assert (first.nvml_index, second.nvml_index) == (1, 0)
        first.set_power_limit_w(200.0)
        assert (first.power_limit_w(), second.power_limit_w()) == (200.0, 400.0)


def test_a_zeusd_that_numbers_gpus_otherwise_is_found_out(machine, tmp_path):
    machine.set(permission=0)
    with running_zeusd(
        tmp_path / "sock", lambda gpu, mw: machine.force_limit(1 - gpu, mw), version="0.5.0"
    ):
        (device,) = gpus_of_job({"ZEUSD_SOCK_PATH": str(tmp_path / "sock")}, 1)
        with pytest.raises(DeviceError, match=r"limit of 200 W and reports 400 W"):
            set_limit(device, 200.0)
