"""What cells of tables say of a saving."""

from __future__ import annotations

import functools

import pytest

from zeusrun.analysis.estimates import Estimate, NetAmounts, Savings
from zeusrun.view import units
from zeusrun.view.claims import cell_share, claim_in_use, range_text, short_amount
from zeusrun.view.report.headline import money_saved

EUROS = functools.partial(units.money, currency="EUR")


@pytest.mark.parametrize(
    ("share", "more"),
    [
        (Estimate(0.2, -0.1, 0.5), 5),  # the doubt is 1.5 times too large: 2.25 times the runs
        (Estimate(-0.2, -0.5, 0.1), 5),
        (Estimate(0.2, -0.001, 0.5), 1),
        (Estimate(0.001, -0.3, 0.3), None),
        (Estimate(0.0, -0.3, 0.3), None),
        (Estimate(0.2, 0.1, 0.3), None),
    ],
)
def test_how_many_runs_would_show_a_difference(share, more):
    savings = Savings(9, explored=True, share=share, default=32, default_runs=4, in_use=64)
    assert savings.shown_in == more
    claim = claim_in_use(savings)
    assert ("would show it" in claim) is (more is not None)
    assert more is None or f"about {units.plural(more, 'more run')} of each would" in claim


def test_a_share_that_may_be_0_is_not_shown():
    assert cell_share(Estimate(0.14, 0.09, 0.19)) == "14 % (9 to 19 %)"
    assert cell_share(Estimate(-0.14, -0.19, -0.09)) == "−14 % (−19 to −9 %)"  # noqa: RUF001
    assert cell_share(Estimate(0.2, -0.07, 0.4)) == "not shown (−7 to 40 %)"  # noqa: RUF001


def test_an_amount_has_its_range_and_is_not_shown_if_it_may_be_0():
    text = units.electricity
    assert short_amount(Estimate(7.2e6, 3.6e6, 1.08e7), text) == "2.00 kWh (1.00 to 3.00 kWh)"
    assert short_amount(Estimate(-3.6e6, -3.6e6, -3.6e6), text) == "−1.00 kWh"  # noqa: RUF001
    assert short_amount(Estimate(3.6e6, -1.0, 7.2e6), text) == "not shown (0.00 to 2.00 kWh)"
    assert short_amount(None, text) == units.UNKNOWN


@pytest.mark.parametrize(
    ("low", "high", "text", "shown"),
    [
        (2.9376e6, 1.1448e7, units.electricity, "0.82 to 3.18 kWh"),
        (7.45e4, 1.1e7, units.electricity, "0.02 to 3.06 kWh"),
        (-5.0e5, 2.0e3, units.energy, "−500 to 2 kJ"),  # noqa: RUF001
        (358.0, 1390.0, units.carbon, "0.36 to 1.39 kg"),
        (0.0042, 1.2, EUROS, "0.00 to 1.20 EUR"),
        (-1e-5, 2e-5, EUROS, "less than 0.0001 EUR"),
        (0.0, 0.0, units.energy, "0 J"),
    ],
)
def test_a_range_has_one_unit(low, high, text, shown):
    assert range_text(Estimate(low, low, high), text) == shown


def test_money_is_told_by_currency():
    amounts = {"EUR": Estimate(2.0, 1.0, 3.0), "USD": Estimate(4.0, 3.0, 5.0)}
    text = money_saved(NetAmounts(money=amounts)).replace("\N{NO-BREAK SPACE}", " ")
    assert "2.00 EUR (1.00 to 3.00 EUR), 4.00 USD (3.00 to 5.00 USD)" in text
