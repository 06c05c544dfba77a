"""The simulated device."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tests.contracts.device import LimitableDeviceContract
from tests.gpu.simulated import SimulatedDevice
from zeusrun.errors import DeviceError, LimitRefusedError


class SimulatedContract(LimitableDeviceContract):
    has: ClassVar = {}

    @pytest.fixture
    def device(self, clock):
        return SimulatedDevice(clock, **self.has)

    @pytest.fixture
    def work(self, clock):
        return lambda: clock.advance(1.0)

    @pytest.fixture
    def lose(self, device):
        return lambda: device.fail("GPU is lost")


class TestSimulatedDevice(SimulatedContract):
    pass


class TestSimulatedDeviceWithoutCounter(SimulatedContract):
    has: ClassVar = {"has_counter": False}


class TestSimulatedDeviceWithoutPower(SimulatedContract):
    has: ClassVar = {"has_power": False}


def test_it_draws_its_demand_up_to_its_limit(clock):
    device = SimulatedDevice(clock, demand_w=250.0, power_limit_range_w=(100.0, 300.0))
    clock.advance(2.0)
    device.set_power_limit_w(150.0)
    clock.advance(4.0)
    device.demand(50.0)
    clock.advance(8.0)
    reading = device.read()
    assert reading.energy_j == 250.0 * 2 + 150.0 * 4 + 50.0 * 8
    assert reading.power_w == 50.0


def test_its_counter_can_stand_still_while_it_draws(clock):
    device = SimulatedDevice(clock, demand_w=200.0)
    clock.advance(1.0)
    device.stand_still()
    clock.advance(1.0)
    assert device.read().energy_j == 200.0
    assert device.read().power_w == 200.0


def test_its_counter_can_restart(clock):
    device = SimulatedDevice(clock, demand_w=200.0)
    clock.advance(5.0)
    device.restart_counter()
    clock.advance(1.0)
    assert device.read().energy_j == 200.0


def test_it_can_refuse_limits(clock):
    device = SimulatedDevice(clock)
    device.refuse_limits()
    with pytest.raises(LimitRefusedError, match="refuse"):
        device.set_power_limit_w(200.0)
    assert device.read().power_limit_w == 300.0


def test_a_failure_names_device_and_reason(clock):
    device = SimulatedDevice(clock, uuid="SIM-7")
    device.fail("GPU is lost")
    with pytest.raises(DeviceError, match=r"SIM-7.*GPU is lost"):
        device.read()


def test_it_lists_the_processes_it_is_told_of(clock):
    device = SimulatedDevice(clock)
    assert device.compute_processes() == frozenset()
    device.compute(frozenset({7}))
    assert device.compute_processes() == {7}
    device.compute(None)
    assert device.compute_processes() is None


def test_its_limit_throttles_it_when_it_binds(clock):
    device = SimulatedDevice(clock, demand_w=200.0)
    assert device.read().health.throttle_reasons == ()
    device.set_power_limit_w(150.0)
    assert device.read().health.throttle_reasons == ("sw_power_cap",)
