"""What choosing batch sizes has saved in energy, money and carbon."""

from __future__ import annotations

import pytest

from tests.view.report.values import KWH, run
from zeusrun.analysis.estimates import Estimate
from zeusrun.analysis.savings import find_net_amounts, find_savings
from zeusrun.trial import TrialStatus

DEFAULT = [run(n, 32, 1.0, price=0.5, currency="EUR", carbon_g=300.0) for n in range(1, 7)]


def net(*trials):
    return find_net_amounts(trials, find_savings(trials))


def test_money_counts_at_the_price_of_the_recurrence_that_saved_it():
    """A cheap hour is not a cheap batch size: equal energy saves no money at any price."""
    dear = [run(n, 64, 0.5, price=0.1, currency="EUR") for n in range(7, 12)]  # 0.2 a kWh
    found = net(*DEFAULT, *dear)
    assert found.energy_j.value == pytest.approx(2.5 * KWH, rel=0.03)
    assert found.money["EUR"].value == pytest.approx(0.2 * 2.5, rel=0.03)
    assert found.money["EUR"].low == pytest.approx(0.2 * found.energy_j.low / KWH)
    equal = [run(n, 64, 1.0, price=0.1, currency="EUR") for n in range(7, 12)]
    assert not net(*DEFAULT, *equal).money["EUR"].is_shown


def test_a_lost_recurrence_costs_what_its_other_batch_sizes_took():
    found = net(*DEFAULT, run(7, 64, 0.25, status=TrialStatus.STOPPED, carbon_g=100.0))
    assert found.energy_j == Estimate(*(-0.25 * KWH,) * 3)
    assert (found.carbon_g.low, found.carbon_g.high) == pytest.approx((-100.0, -100.0))


def test_what_is_unknown_does_not_count():
    priced = {"price": 0.3, "currency": "EUR"}
    found = net(
        *DEFAULT,
        run(7, 64, 0.5),
        run(8, 64, 0.5, status=TrialStatus.STOPPED, **priced),
        run(8, 32, 1.0, attempt=2, price=1.0, currency="CHF"),
        run(9, 64, 0.5, price=1e38, currency="EUR", carbon_g=1e38),  # from a damaged record
    )
    assert (found.energy_runs, found.money_runs, found.carbon_runs) == (9, 6, 6)
    assert net(run(1, 64)).energy_j is None
