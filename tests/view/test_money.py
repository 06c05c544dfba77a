"""Price and carbon as people read them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from tests.factories import build_trial as trial
from tests.launcher.values import after, report, started
from tests.view.test_tables import LARGE, LONG_JOB, reached, render, saving, widest
from zeusrun.analysis.amounts import add_up, find_totals
from zeusrun.launcher.events import TrialStarts
from zeusrun.view import units
from zeusrun.view.live import live_panel, summary
from zeusrun.view.sheets import trial_sheet
from zeusrun.view.tables import history_table, totals_table

SPENT = {"price": 0.4216, "currency": "EUR", "carbon_g": 1304.0, "pue": 1.2}


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, "–"),  # noqa: RUF001
        (0.0, "0 EUR"),
        (0.000_005, "<0.0001 EUR"),
        (-0.000_005, ">−0.0001 EUR"),  # noqa: RUF001
        (0.0042, "0.0042 EUR"),
        (0.0996, "0.10 EUR"),
        (0.42, "0.42 EUR"),
        (-0.42, "−0.42 EUR"),  # noqa: RUF001
        (0.996, "1.00 EUR"),
        (3.1, "3.10 EUR"),
        (999.99, "999.99 EUR"),
        (999.996, "1,000 EUR"),
        (1240.4, "1,240 EUR"),
    ],
)
def test_money_has_the_digits_that_count(amount, text):
    assert units.money(amount, "EUR") == text


@pytest.mark.parametrize(
    ("grams", "text"),
    [
        (None, "–"),  # noqa: RUF001
        (0.0, "0 g"),
        (0.000283, "<0.001 g"),
        (0.0012, "0.0012 g"),
        (412.0, "412 g"),
        (1304.0, "1.30 kg"),
        (2.05e6, "2.05 t"),
    ],
)
def test_carbon_is_in_grams_kilograms_and_tonnes(grams, text):
    assert units.carbon(grams) == text


def rows_of(text):
    return {line[:8].strip(): line[8:].strip() for line in text.splitlines()}


def test_a_sheet_shows_price_and_carbon_and_the_pue_once():
    found = rows_of(render(trial_sheet(trial(**SPENT), None, run_dir_exists=True)))
    assert found["price"].endswith("0.42 EUR (PUE 1.2)")
    assert found["carbon"].endswith("1.30 kg CO2e")
    carbon = trial(carbon_g=1304.0, pue=1.2)
    assert "1.30 kg CO2e (PUE 1.2)" in render(trial_sheet(carbon, None, run_dir_exists=True))


def test_a_sheet_without_a_price_has_no_row_of_it():
    text = render(trial_sheet(trial(pue=1.2), None, run_dir_exists=True))
    assert "price" not in text
    assert "carbon" not in text


def columns(trials, width):
    text = render(history_table("job", trials, width=width), width)
    assert widest(text) <= width
    return next(line.split() for line in text.splitlines() if line.startswith(("when ", "run ")))


def test_a_history_has_columns_of_price_and_carbon_where_a_run_has_them():
    plain = [reached(1, 50.0)]
    assert columns(plain, 120) == [
        "when", "run", "batch", "epochs", "time", "energy", "cost", "status",
    ]  # fmt: skip
    assert columns([*plain, reached(2, 50.0, **SPENT)], 120) == [
        "when", "run", "batch", "epochs", "time", "energy", "price", "carbon", "cost", "status",
    ]  # fmt: skip


def test_a_history_without_room_leaves_out_the_hour_then_carbon_price_and_epochs():
    values = {"time_s": 43_200.0, **SPENT}
    trials = [replace(each, **values) for each in saving()]
    limited = [replace(each, power_limit_w=450.0) for each in trials]
    optional = ("limit", "epochs", "price", "carbon", "saved")
    shown = [[name for name in optional if name in columns(trials, w)] for w in (80, 90, 100)]
    assert shown == [
        ["epochs", "saved"], ["epochs", "price", "saved"], ["epochs", "price", "carbon", "saved"],
    ]  # fmt: skip
    text = render(history_table("job", trials, width=90), 90)
    hour = datetime.fromisoformat(trials[0].started_at).astimezone().strftime("%m-%d %H:%M")
    assert hour not in text  # the date alone makes room
    assert hour in render(history_table("job", trials, width=110), 110)
    short = [replace(each, time_s=84.0) for each in trials]
    assert [n for n in optional if n in columns(short, 80)] == ["epochs", "saved"]
    assert [n for n in optional if n in columns(limited, 80)] == ["limit", "saved"]
    assert columns(trials, 40) == ["run", "batch", "cost", "status"]


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("limited", [True, False])
def test_a_history_of_large_amounts_fits(width, limited):
    large = {"price": 1e9, "currency": "CURRENCY", "carbon_g": 1e12}
    trials = [replace(each, **large) for each in LARGE]
    trials = trials if limited else [replace(each, power_limit_w=None) for each in trials]
    text = render(history_table(LONG_JOB, trials, width=width), width)
    assert widest(text.replace(LONG_JOB, "")) <= width
    assert text.count("123 MJ") >= len(trials) <= text.count("~34.3 kWh")


def test_the_panel_and_the_summary_show_the_price_beside_the_energy():
    progress = after(started(103.0), report(105.0, 1, 0.1))
    progress = replace(progress, energy_j=40.0, cost_j=50.0, price=0.42, currency="EUR")
    assert "40.0 J · 0.42 EUR · cost 50.0 J" in render(
        live_panel(TrialStarts(trial(), None), progress, 80)
    )
    done = reached(1, 50.0, **SPENT)
    lines = render(summary(replace(done, power_limit_w=450.0))).splitlines()
    assert "  50.0 J estimated · 0.42 EUR · 1.30 kg CO2e" in lines
    assert "  cost 50.0 J (eta_knob 0.5) · limit 450 W" in lines


def totals(trials, group="job", width=80):
    knobs = {each.eta_knob for each in trials if each.cost_j is not None}
    table = totals_table(group, find_totals(trials, group), add_up("all", trials), knobs, width)
    return render(table, width)


def test_totals_have_a_row_for_each_group_and_one_for_all():
    trials = [reached(1, 50.0, job="a", **SPENT), reached(2, 50.0, job="b", **SPENT)]
    text = totals(trials)
    rows = [line.split() for line in text.splitlines()]
    assert rows[0] == ["job", "runs", "time", "energy", "price", "carbon", "cost"]
    (whole,) = [row for row in rows if row[:1] == ["all"]]
    assert whole[1:] == [
        "2", "20.0", "s", "~100", "J", "0.84", "EUR", "2.61", "kg", "100", "J",
    ]  # fmt: skip
    assert "all" not in totals(trials[:1])


def test_totals_say_that_they_add_costs_of_different_eta_knob():
    trials = [reached(1, 50.0), reached(2, 50.0, eta_knob=1.0), reached(3, None, eta_knob=0.2)]
    assert "the cost adds costs of different eta_knob (0.5, 1)" in totals(trials)
    assert "eta_knob" not in totals([trials[0], trials[2]])


def test_totals_on_a_narrow_screen_cut_no_number():
    text = totals([reached(n, 1234.5, job=f"job-{n}", **SPENT) for n in (1, 2)], width=40)
    assert widest(text.partition("~ includes")[0]) <= 40
    assert text.splitlines()[0].split() == ["job", "runs", "time", "energy", "cost"]
    assert "…" not in text
    assert text.count("1.23 kJ") == 4


def test_totals_say_of_how_many_runs_a_value_is_unknown():
    some = [reached(1, 50.0, **SPENT), reached(2, 50.0), reached(3, 50.0, energy_j=None)]
    text = totals(some)
    assert "unknown, so not included: energy of 1 run" in text
    assert "unknown, so not included: price and carbon of 2 runs" in text
    none = totals([reached(1, 50.0)])
    assert "price" not in none.splitlines()[0]
    assert "no run has a price" in none


def test_totals_in_several_currencies_and_of_long_names_fit_80_columns():
    large = {"price": 1e6, "carbon_g": 1e12, "time_s": 1e8}
    trials = [
        reached(n, 1e12, job=LONG_JOB, **{**large, "currency": currency})
        for n, currency in enumerate(("EUR", "USD", "CURRENCY"))
    ]
    text = totals(trials)
    assert widest(text) <= 80
    assert text.count("1,000,000") == 3
