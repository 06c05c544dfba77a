"""What a run costs: with the rates that held while it trained, never at the price of its outcome."""

from __future__ import annotations

import functools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.factories import REACHED, build_trial, load_job
from zeusrun.jobfile.tariffs import load_tariffs
from zeusrun.launcher.supervision.outcome import price_at_end, price_outcome
from zeusrun.tariff import Tariff, Tariffs, from_points, parse_time

TRIAL = build_trial(started_at="2026-11-23T07:00:00.000+00:00")
BEGAN = parse_time(TRIAL.started_at, None)
OUTCOME = replace(REACHED, startup_s=60.0, time_s=7200.0, energy_j=3.6e6)


def test_a_run_costs_what_held_from_the_start_of_its_training():
    rates = from_points([(BEGAN, 9.0), (BEGAN + 60, 0.2), (BEGAN + 3660, 0.4), (BEGAN + 7260, 9.0)])
    priced = price_outcome(TRIAL, OUTCOME, Tariffs(rates, "EUR", Tariff(constant=380.0), 1.5))
    assert (priced.price, priced.currency) == (pytest.approx(0.45), "EUR")
    assert (priced.carbon_g, priced.pue) == (pytest.approx(570), 1.5)
    assert priced.warnings == OUTCOME.warnings


@pytest.mark.parametrize("unknown", [{"energy_j": None}, {"time_s": None}])
def test_what_is_not_measured_has_no_price_and_no_warning(unknown):
    outcome = replace(OUTCOME, **unknown)
    assert price_outcome(TRIAL, outcome, Tariffs(from_points([(0.0, 1.0)]), "EUR")) is outcome


def test_without_a_tariff_nothing_is_added():
    assert price_outcome(TRIAL, OUTCOME, Tariffs(pue=1.5)) is OUTCOME


def test_a_rate_that_is_unknown_for_a_part_leaves_the_amount_unknown_and_warns_once():
    tariffs = Tariffs(from_points([(BEGAN, 0.1), (BEGAN + 600, 0.2)]), "EUR", Tariff(constant=380))
    priced = price_outcome(TRIAL, OUTCOME, tariffs)
    assert (priced.price, priced.currency, priced.carbon_g) == (None, None, pytest.approx(380))
    (warning,) = priced.warnings
    assert warning.startswith("its price is unknown: price.csv has rates from 2026-11-23 ")
    assert " and the run trained from 2026-11-23 " in warning


def submission(tmp_path, text):
    (tmp_path / "prices.csv").write_text(text)
    spec = load_job(tmp_path, price={"currency": "EUR", "csv": "prices.csv"})
    read = functools.partial(load_tariffs, spec)
    return SimpleNamespace(tariffs=read(), read_tariffs=read)


def test_a_file_that_ended_before_the_run_is_read_again(tmp_path):
    ends_early = submission(tmp_path, "2026-11-23T00:00Z,0.1\n2026-11-23T06:00Z,0.2\n")
    (tmp_path / "prices.csv").write_text("2026-11-23T06:00Z,0.2\n2026-11-24T06:00Z,0.3\n")
    priced = price_at_end(ends_early, TRIAL, replace(OUTCOME, time_s=86_400.0))
    assert priced.price == pytest.approx(0.2 + 0.1 * (3600 + 60) / 86_400)
    assert priced.warnings == ()


@pytest.mark.parametrize("text", [None, "broken\nbroken", "2026-01-01T00:00Z,1\n"])
def test_a_file_that_broke_while_a_run_trained_does_not_fail_the_run(tmp_path, text):
    ends_early = submission(tmp_path, "2026-11-22T00:00Z,0.1\n")
    (tmp_path / "prices.csv").unlink()
    if text is not None:
        (tmp_path / "prices.csv").write_text(text)
    priced = price_at_end(ends_early, TRIAL, OUTCOME)
    assert (priced.status, priced.price, len(priced.warnings)) == (OUTCOME.status, None, 1)


def test_a_file_that_covers_a_run_is_not_read_again(tmp_path):
    covers = submission(tmp_path, "2026-11-23T00:00Z,0.1\n2026-11-24T00:00Z,0.2\n")
    (tmp_path / "prices.csv").write_text("2026-11-23T00:00Z,0.9\n2026-11-24T00:00Z,0.9\n")
    assert price_at_end(covers, TRIAL, OUTCOME).price == pytest.approx(0.1)
