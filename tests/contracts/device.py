"""What every device must do. A device inherits a class and says how to make, use and break one.

The fixtures: ``device``; ``work``, a function that makes it use energy; ``lose``, a function after
which it no longer answers.
"""

from __future__ import annotations

import math

import pytest

from zeusrun.energy.device import LimitableDevice
from zeusrun.errors import DeviceError
from zeusrun.trial import EnergySource


class DeviceContract:
    def test_it_has_a_uuid_and_a_model(self, device):
        assert device.uuid
        assert device.model
        assert device.is_gpu in (True, False)

    def test_its_maximum_power_is_positive_or_unknown(self, device):
        assert device.max_power_w is None or device.max_power_w > 0

    def test_its_caveat_is_a_sentence_if_it_has_one(self, device):
        assert device.caveat is None or len(device.caveat.split()) > 3

    def test_its_processes_are_ids_or_unknown(self, device):
        processes = device.compute_processes()
        assert processes is None or all(pid > 0 for pid in processes)

    def test_its_health_is_within_reason_or_unknown(self, device, work):
        work()
        health = device.read().health
        if health is None:
            assert not device.is_gpu
            return
        assert health.utilization is None or 0 <= health.utilization <= 1
        assert health.temperature_c is None or -50 < health.temperature_c < 150
        for clock_mhz in (health.sm_clock_mhz, health.memory_clock_mhz):
            assert clock_mhz is None or clock_mhz >= 0
        reasons = health.throttle_reasons
        assert reasons is None or all(reason == reason.lower() for reason in reasons)

    def test_it_tells_energy_or_power(self, device):
        reading = device.read()
        assert reading.energy_j is not None or reading.power_w is not None

    def test_a_reading_is_finite_and_not_negative(self, device, work):
        work()
        reading = device.read()
        for value in (reading.energy_j, reading.power_w, reading.power_limit_w):
            assert value is None or (math.isfinite(value) and value >= 0)

    def test_what_it_does_not_have_is_none_in_every_reading(self, device, work):
        first = device.read()
        work()
        second = device.read()
        assert (first.energy_j is None) == (second.energy_j is None)
        assert (first.power_w is None) == (second.power_w is None)
        assert (first.power_limit_w is None) == (second.power_limit_w is None)

    def test_it_claims_a_counter_or_a_model_only_if_it_tells_energy(self, device):
        tells = device.read().energy_j is not None
        assert tells == (device.energy_source is not EnergySource.INTEGRATED)

    def test_work_adds_to_its_energy(self, device, work):
        before_j = device.read().energy_j
        work()
        after_j = device.read().energy_j
        if before_j is None:
            assert after_j is None
        else:
            assert after_j > before_j

    def test_energy_never_decreases(self, device, work):
        energies_j = []
        for _ in range(5):
            energies_j.append(device.read().energy_j)
            work()
        if energies_j[0] is not None:
            assert energies_j == sorted(energies_j)

    def test_it_says_so_when_it_does_not_answer(self, device, lose):
        lose()
        with pytest.raises(DeviceError):
            device.read()

    def test_it_may_be_closed_twice(self, device):
        device.close()
        device.close()


class LimitableDeviceContract(DeviceContract):
    def test_it_is_known_to_have_a_limit(self, device):
        assert isinstance(device, LimitableDevice)

    def test_its_limit_is_within_its_range(self, device):
        low_w, high_w = device.power_limit_range_w()
        assert 0 < low_w <= device.read().power_limit_w <= high_w

    def test_its_maximum_power_is_its_highest_limit(self, device):
        assert device.max_power_w == device.power_limit_range_w()[1]

    def test_a_limit_that_is_set_is_read_back_exactly(self, device):
        low_w, high_w = device.power_limit_range_w()
        for watts in (low_w, high_w, low_w + 0.125):
            device.set_power_limit_w(watts)
            assert device.read().power_limit_w == device.power_limit_w() == watts

    def test_it_draws_no_more_than_its_limit(self, device):
        low_w, _ = device.power_limit_range_w()
        device.set_power_limit_w(low_w)
        power_w = device.read().power_w
        assert power_w is None or power_w <= low_w

    @pytest.mark.parametrize("wrong", [-1.0, 0.0, 1e6, math.nan, math.inf])
    def test_a_limit_out_of_range_is_refused_naming_the_range(self, device, wrong):
        before_w = device.read().power_limit_w
        low_w, high_w = device.power_limit_range_w()
        with pytest.raises(DeviceError, match=f"between {low_w:g} and {high_w:g} W"):
            device.set_power_limit_w(wrong)
        assert device.read().power_limit_w == before_w
