"""Devices of other hosts: the contracts of devices and meters, and what is unknown."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from tests.contracts.device import DeviceContract
from tests.contracts.meter import POWER_W, MeterContract
from tests.gpu.simulated import SimulatedDevice
from zeusrun.energy.device import Reading
from zeusrun.energy.monitor import EnergyMonitor
from zeusrun.errors import DeviceError
from zeusrun.run_on.hosts import devices as readings
from zeusrun.run_on.hosts.cluster import _compare
from zeusrun.run_on.hosts.devices import RemoteDevice, _read, describe_device
from zeusrun.trial import EnergySource

OFFSET_S = -1000.0  # the node's clock shows so much more


@pytest.fixture(autouse=True)
def clocks(clock, monkeypatch):
    """Both launchers have the clock of the test; ``send`` adds the offset of the node's."""
    monkeypatch.setattr(readings, "time", SimpleNamespace(monotonic=clock))


def to_own_time(t):
    return t + OFFSET_S


class Pair:
    """A device of a host, and what the head has of it."""

    def __init__(self, there, host="b"):
        self.there = there
        self.here = RemoteDevice(host, json.loads(json.dumps(describe_device(there))))
        self.send()

    def send(self):
        """Send a reading, as the launcher there does ten times a second."""
        reading = json.loads(json.dumps(_read(self.there)))
        if not isinstance(reading, str):
            reading[0] -= OFFSET_S
        self.here.take(reading, to_own_time)


class RemoteContract(DeviceContract):
    has_counter = True

    @pytest.fixture
    def pair(self, clock):
        return Pair(
            SimulatedDevice(clock, has_counter=self.has_counter, caveat="It is one half of a GPU.")
        )

    @pytest.fixture
    def device(self, pair):
        return pair.here

    @pytest.fixture
    def work(self, clock, pair):
        def work():
            clock.advance(0.1)
            pair.send()

        return work

    @pytest.fixture
    def lose(self, pair):
        def lose():
            pair.there.fail("GPU is lost")
            pair.send()

        return lose


class TestRemoteDevice(RemoteContract):
    def test_its_error_names_the_host(self, device, lose):
        lose()
        with pytest.raises(DeviceError, match=r"^host b: Simulated GPU \(SIM-0\): GPU is lost$"):
            device.read()

    def test_a_reading_of_more_than_three_seconds_ago_is_none(self, device, clock):
        clock.advance(2.9)
        assert device.read().t == clock() - 2.9
        clock.advance(0.2)
        for ask in (device.read, device.power_limit_w):
            with pytest.raises(DeviceError, match=r"^host b sends no readings$"):
                ask()

    def test_before_the_first_reading_there_is_none(self, pair):
        fresh = RemoteDevice("b", describe_device(pair.there))
        with pytest.raises(DeviceError, match="host b has sent no reading"):
            fresh.read()

    def test_its_health_arrives(self, device, pair):
        assert json.dumps(vars(device.read().health)) == json.dumps(vars(pair.there.read().health))


class TestRemoteDeviceWithoutACounter(RemoteContract):
    has_counter = False


class MonitorContract(MeterContract):
    has_counter = True

    @pytest.fixture
    def pairs(self, clock):
        parts = (("A", "b", 0.25), ("B", "c", 0.75))
        return [
            Pair(
                SimulatedDevice(
                    clock, uuid=uuid, demand_w=part * POWER_W, has_counter=self.has_counter
                ),
                host,
            )
            for uuid, host, part in parts
        ]

    @pytest.fixture
    def meter(self, clock, pairs):
        return EnergyMonitor([pair.here for pair in pairs], None, period_s=3600.0, clock=clock)

    @pytest.fixture
    def work(self, clock, meter, pairs):
        def work(seconds):
            for number in range(round(seconds * 10)):
                clock.advance(0.1)
                for pair in pairs:
                    pair.send()
                meter.sample()
                if number % 3 == 0:
                    meter.sample()  # the same reading again

        return work


class TestMonitorOfRemoteCounters(MonitorContract):
    def test_hosts_have_their_parts(self, clock, meter, work):
        with meter:
            start_s = clock()
            work(10.0)
        parts = meter.host_energies_j(start_s + 1.0, start_s + 9.0)
        assert parts == {"b": pytest.approx(2 * POWER_W), "c": pytest.approx(6 * POWER_W)}


class TestMonitorOfRemotePower(MonitorContract):
    has_counter = False


@pytest.fixture
def own(clock):
    return SimulatedDevice(clock, uuid="OWN", demand_w=100.0)


@pytest.fixture
def pair(clock):
    return Pair(SimulatedDevice(clock, demand_w=200.0))


def watch(clock, monitor, pair, seconds, every=1):
    for number in range(round(seconds * 10)):
        clock.advance(0.1)
        if every and number % every == 0:
            pair.send()
        monitor.sample()


@pytest.fixture
def monitor(clock, own, pair):
    monitor = EnergyMonitor([own, pair.here], None, period_s=3600.0, clock=clock)
    with monitor:
        yield monitor


def test_all_hosts_are_added_and_this_one_has_no_name(clock, monitor, pair):
    start_s = clock()
    watch(clock, monitor, pair, 10.0)
    assert monitor.energy_between(start_s, start_s + 10.0) == pytest.approx(3000.0)
    assert monitor.host_energies_j(start_s, start_s + 10.0) == {
        "": pytest.approx(1000.0),
        "b": pytest.approx(2000.0),
    }


def test_a_short_gap_of_readings_loses_nothing(clock, monitor, pair):
    start_s = clock()
    watch(clock, monitor, pair, 2.0)
    watch(clock, monitor, pair, 3.0, every=0)
    assert monitor.energy_between(start_s, start_s + 4.0) is None  # until it answers again
    watch(clock, monitor, pair, 2.0)
    assert monitor.energy_between(start_s, start_s + 7.0) == pytest.approx(2100.0)


def test_a_host_that_sends_nothing_any_more_makes_the_energy_unknown(clock, monitor, pair):
    start_s = clock()
    watch(clock, monitor, pair, 2.0)
    watch(clock, monitor, pair, 8.0, every=0)
    assert monitor.energy_between(start_s, start_s + 10.0) is None
    assert monitor.host_energies_j(start_s, start_s + 10.0) == {
        "": pytest.approx(1000.0),
        "b": None,
    }
    assert monitor.energy_source is None
    assert [text for text in monitor.warnings if "host b sends no readings" in text]


def test_a_host_lost_just_before_the_end_makes_the_energy_unknown(clock, own, pair):
    with EnergyMonitor([own, pair.here], None, period_s=3600.0, clock=clock) as monitor:
        start_s = clock()
        watch(clock, monitor, pair, 5.0)
        watch(clock, monitor, pair, 2.0, every=0)
    assert monitor.energy_between(start_s, start_s + 7.0) is None


def test_late_readings_count_at_their_own_time(clock, monitor, pair):
    start_s = clock()
    watch(clock, monitor, pair, 9.0, every=5)
    pair.there.demand(300.0)
    watch(clock, monitor, pair, 3.0, every=5)
    clock.advance(0.1)
    pair.send()
    monitor.sample()
    used_j = monitor.host_energies_j(start_s, start_s + 12.0)["b"]
    assert used_j == pytest.approx(200 * 9 + 300 * 3, rel=0.01)


def test_a_reading_before_the_start_counts_at_the_start(clock, own, pair):
    clock.advance(0.8)
    with EnergyMonitor([own, pair.here], None, period_s=3600.0, clock=clock) as monitor:
        start_s = clock()
        watch(clock, monitor, pair, 5.0)
    assert monitor.energy_between(start_s + 1.0, start_s + 5.0) == pytest.approx(1200.0)


class Known:
    """A device whose readings a test makes."""

    is_gpu, uuid, model, max_power_w, caveat = True, "K", "Known", 300.0, None
    energy_source = EnergySource.COUNTER

    def __init__(self):
        self.next = Reading(0.0, 100.0, None)

    def read(self):
        return self.next

    def compute_processes(self):
        return frozenset()


def test_a_reading_older_than_the_last_is_ignored(clock):
    device = Known()
    with EnergyMonitor([device], None, period_s=3600.0, clock=clock) as monitor:
        start_s = clock()
        for t, joules in ((1.0, 100.0), (3.0, 300.0), (2.0, 200.0), (3.0, 300.0), (4.0, 400.0)):
            clock.advance(1.0)
            device.next = Reading(joules, 100.0, None, t=start_s + t)
            monitor.sample()
    assert monitor.warnings == []
    assert monitor.energy_between(start_s, start_s + 4.0) == pytest.approx(400.0)


# Hosts that differ


def node(name, devices, ranks):
    return SimpleNamespace(name=name, devices=devices, ranks=range(10, 10 + ranks))


def cpu(clock, *, measured):
    device = SimulatedDevice(clock, uuid="cpu")
    device.is_gpu, device.model = False, "Some CPU"
    device.energy_source = EnergySource.COUNTER if measured else EnergySource.ESTIMATED
    return device


@pytest.fixture
def compare(monkeypatch):
    from zeusrun.run_on.hosts import cluster

    monkeypatch.setattr(cluster.socket, "gethostname", lambda: "a")

    def compare(own, other, own_ranks=1, ranks=1):
        devices = [RemoteDevice("b", describe_device(each)) for each in other]
        for device, each in zip(devices, other, strict=True):  # with the answer to ``prepare``
            device.take(_read(each), lambda t: t)
        return _compare(own, own_ranks, [node("b", devices, ranks)]), devices

    return compare


def test_hosts_that_are_alike_need_no_remark(compare, own, clock):
    said, devices = compare([own], [SimulatedDevice(clock)])
    assert said == []
    assert all(device.is_metered for device in devices)


def test_another_number_of_processes_is_told(compare, own, clock):
    said, _ = compare([own], [SimulatedDevice(clock)], own_ranks=2, ranks=1)
    (text,) = said
    assert text.startswith("host b has 1 process on 1 x Simulated GPU and a has 2 processes on 1 x")


def test_another_gpu_model_is_told_and_is_metered(compare, own, clock):
    others = [SimulatedDevice(clock, uuid=uuid, model="Other GPU") for uuid in "XY"]
    said, devices = compare([own], others)
    assert said[0].endswith("process on 1 x Simulated GPU: the slower one decides the speed")
    assert " on 2 x Other GPU and a has " in said[0]
    assert all(device.is_metered for device in devices)


def test_another_cpu_is_told_and_is_metered(compare, clock):
    other = cpu(clock, measured=False)
    other.model = "Another CPU"
    (said,), (device,) = compare([cpu(clock, measured=False)], [other])
    assert said.startswith(
        "host b has 1 process on 1 x Another CPU and a has 1 process on 1 x Some CPU"
    )
    assert device.is_metered


@pytest.mark.parametrize("measured", [True, False])
def test_measured_and_estimated_energies_are_not_added(compare, clock, measured):
    there = cpu(clock, measured=measured)
    said, (device,) = compare([cpu(clock, measured=not measured)], [there])
    words = ("measured", "estimated") if measured else ("estimated", "measured")
    assert said == [
        (
            f"the energy of host b is {words[0]} on its CPU and that of a is {words[1]} on its CPU. They cannot be added, so "
            "the energy of the run is unknown"
        )
    ]
    check_unknown(clock, cpu(clock, measured=not measured), there, device)


def test_a_gpu_and_a_cpu_are_not_added(compare, own, clock):
    there = cpu(clock, measured=True)
    said, (device,) = compare([own], [there])
    assert len(said) == 2
    assert " on 1 x Some CPU and a has 1 process on 1 x Simulated GPU" in said[0]
    check_unknown(clock, own, there, device)


def check_unknown(clock, own, there, device):
    """Whatever its readings say, the energy of a run with a device is unknown from the start."""
    with EnergyMonitor([own, device], None, period_s=3600.0, clock=clock) as monitor:
        start_s = clock()
        for _ in range(50):
            clock.advance(0.1)
            device.take(_read(there), lambda t: t)
            monitor.sample()
            assert monitor.energy_between(start_s, clock()) is None
    assert monitor.energy_between(start_s, start_s + 4.0) is None
    assert monitor.host_energies_j(start_s, start_s + 4.0)["b"] is None
    assert monitor.energy_source is None
