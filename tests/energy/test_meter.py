"""The contract of meters, over the monitor and over a meter that only knows a constant power."""

from __future__ import annotations

import pytest

from tests.contracts.meter import POWER_W, MeterContract
from tests.gpu.simulated import SimulatedDevice
from zeusrun.energy.device_energy import Accounts
from zeusrun.energy.monitor import EnergyMonitor
from zeusrun.trial import EnergySource


class MonitorContract(MeterContract):
    has_counter = True

    @pytest.fixture
    def meter(self, clock):
        devices = [
            SimulatedDevice(clock, uuid=uuid, demand_w=watts, has_counter=self.has_counter)
            for uuid, watts in (("A", 0.25 * POWER_W), ("B", 0.75 * POWER_W))
        ]
        # A period so long that only the test takes samples.
        return EnergyMonitor(devices, None, period_s=3600.0, clock=clock)

    @pytest.fixture
    def work(self, clock, meter):
        def work(seconds):
            for _ in range(round(seconds * 10)):
                clock.advance(0.1)
                meter.sample()

        return work


class TestMonitorByCounter(MonitorContract):
    pass


class TestMonitorBySampledPower(MonitorContract):
    has_counter = False


class ConstantMeter:
    """Estimates: the devices always draw the same."""

    energy_source = EnergySource.ESTIMATED
    max_power_w = None
    shared = None
    warnings = ()

    def __init__(self, clock):
        self._clock = clock
        self._started_s = None

    def __enter__(self):
        self._started_s = self._clock()
        return self

    def __exit__(self, *_exception):
        pass

    def energy_between(self, since_s, until_s):
        if until_s < since_s:
            raise ValueError("the window ends before it starts")
        known = self._started_s <= since_s and until_s <= self._clock()
        return (until_s - since_s) * POWER_W if known else None

    def accounts_j(self, since_s, until_s):
        self.energy_between(since_s, until_s)
        return Accounts(None, None)

    def limit_w(self, _since_s, _until_s):
        return None

    def power_w(self):
        return POWER_W


class TestConstantMeter(MeterContract):
    @pytest.fixture
    def meter(self, clock):
        return ConstantMeter(clock)

    @pytest.fixture
    def work(self, clock, meter):
        return clock.advance
