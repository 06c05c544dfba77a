"""What every meter must do. A meter inherits the class and says how to make and use one.

The fixtures: ``clock``, monotonic seconds that only ``work`` moves; ``meter``, not entered yet, of
devices that draw ``POWER_W`` together whenever they work; ``work``, a function that lets a number
of seconds pass while they do.
"""

from __future__ import annotations

import itertools

import pytest

from zeusrun.energy.device_energy import Accounts
from zeusrun.trial import EnergySource

POWER_W = 200.0


class MeterContract:
    def test_energy_between_two_moments_is_that_of_all_devices(self, clock, meter, work):
        with meter:
            start_s = clock()
            work(10.0)
            used_j = meter.energy_between(start_s + 1.0, start_s + 9.0)
        assert used_j == pytest.approx(8 * POWER_W, rel=0.02)

    def test_windows_add_up(self, clock, meter, work):
        with meter:
            start_s = clock()
            work(10.0)
        moments = [start_s, start_s + 2.5, start_s + 7.25, start_s + 10.0]
        parts = [
            meter.energy_between(since_s, until_s)
            for since_s, until_s in itertools.pairwise(moments)
        ]
        assert sum(parts) == pytest.approx(meter.energy_between(moments[0], moments[-1]))

    def test_it_answers_after_the_block_was_left(self, clock, meter, work):
        with meter:
            start_s = clock()
            work(5.0)
        assert meter.energy_between(start_s, start_s + 5.0) == pytest.approx(5 * POWER_W, rel=0.02)

    def test_an_empty_window_used_nothing(self, clock, meter, work):
        with meter:
            start_s = clock()
            work(5.0)
            assert meter.energy_between(start_s + 1.0, start_s + 1.0) == 0

    def test_a_window_that_was_not_measured_is_unknown(self, clock, meter, work):
        with meter:
            start_s = clock()
            work(5.0)
            assert meter.energy_between(start_s - 3600.0, start_s + 5.0) is None
            assert meter.energy_between(start_s, start_s + 3600.0) is None

    @pytest.mark.parametrize("ask", ["energy_between", "accounts_j"])
    def test_a_window_that_ends_before_it_starts_is_refused(self, clock, meter, work, ask):
        with meter:
            start_s = clock()
            work(5.0)
            with pytest.raises(ValueError, match="before it starts"):
                getattr(meter, ask)(start_s + 2.0, start_s + 1.0)

    def test_energy_has_a_source_and_agrees_with_the_account_of_that_name(self, clock, meter, work):
        with meter:
            start_s = clock()
            work(5.0)
            accounts = meter.accounts_j(start_s, start_s + 5.0)
            used_j = meter.energy_between(start_s, start_s + 5.0)
        assert isinstance(accounts, Accounts)
        source = meter.energy_source
        if source is EnergySource.COUNTER:
            assert accounts.counter_j == used_j
        elif source is EnergySource.INTEGRATED:
            assert accounts.integrated_j == used_j
        else:
            assert source is EnergySource.ESTIMATED
            assert accounts == Accounts(None, None)

    def test_power_is_within_its_maximum_or_unknown(self, meter, work):
        with meter:
            work(5.0)
            power_w, max_power_w = meter.power_w(), meter.max_power_w
        assert power_w is None or power_w == pytest.approx(POWER_W, rel=0.02)
        assert max_power_w is None or (power_w or 0) <= max_power_w

    def test_the_power_limit_is_positive_or_unknown(self, clock, meter, work):
        with meter:
            start_s = clock()
            work(5.0)
            limit_w = meter.limit_w(start_s, start_s + 5.0)
        assert limit_w is None or limit_w > 0

    def test_sharing_is_told_or_unknown_and_warnings_are_sentences(self, meter, work):
        with meter:
            work(5.0)
        assert meter.shared in {True, False, None}
        assert all(isinstance(text, str) and len(text.split()) > 3 for text in meter.warnings)
