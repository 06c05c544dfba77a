"""What choosing batch sizes has saved in energy, money and carbon."""

from __future__ import annotations

import pytest

from tests.view.report.values import KWH, run
from zeusrun.analysis.net_amounts import find_net_amounts
from zeusrun.analysis.savings import find_savings
from zeusrun.trial import TrialStatus


def net(trials):
    return find_net_amounts(trials, find_savings(trials))


def test_money_counts_at_the_price_of_the_recurrence_that_saved_it():
    """A cheap hour is not a cheap batch size: equal energy saves no money at any price."""
    trials = [
        run(1, 32, 1.0, price=0.5, currency="EUR"),
        run(2, 64, 1.0, price=0.1, currency="EUR"),
        run(3, 64, 0.5, price=0.1, currency="EUR"),  # 0.2 a kWh
    ]
    found = net(trials)
    assert found.energy_j == 0.5 * KWH
    assert found.money == {"EUR": pytest.approx(0.1)}
    assert (found.energy_runs, found.money_runs, found.carbon_g) == (3, 3, None)


def test_a_lost_recurrence_costs_what_its_other_batch_sizes_took():
    trials = [
        run(1, 32, 1.0, carbon_g=300.0),
        run(2, 64, 0.25, status=TrialStatus.STOPPED, carbon_g=100.0),
    ]
    found = net(trials)
    assert found.energy_j == -0.25 * KWH
    assert found.carbon_g == pytest.approx(-100.0)


def test_a_price_from_a_damaged_record_does_not_count():
    trials = [run(1, 32, 1.0), run(2, 64, 1e-300, price=1e20, currency="EUR", carbon_g=1e20)]
    found = net(trials)
    assert (found.energy_runs, dict(found.money), found.carbon_g) == (2, {}, None)


def test_what_is_unknown_does_not_count():
    priced = {"price": 0.3, "currency": "EUR"}
    trials = [
        run(1, 32, 1.0, **priced),
        run(2, 64, 0.5),
        run(3, 64, 0.5, status=TrialStatus.STOPPED, **priced),
        run(3, 32, 1.0, attempt=2, price=1.0, currency="CHF"),
    ]
    found = net(trials)
    assert (found.energy_runs, found.money_runs) == (3, 1)
    assert find_savings(trials).by_trial["job-2-1"].compared == (trials[0], trials[3])
    assert net([run(1, 64)]).energy_j is None
