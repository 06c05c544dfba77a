"""Whole submits that record what their energy costs."""

from __future__ import annotations

import json
import signal
from datetime import datetime, timedelta, timezone

import pytest

from tests.runs import only_trial, wait_for
from tests.test_preemption import job as checkpoint_job
from tests.test_preemption import preempt

NOW = datetime.now(timezone.utc)
FLAT = {"currency": "EUR", "per_kwh": 360.0}
BUSY = ["--epoch-s", "0.6"]  # or no energy could be estimated
J_PER_KWH = 3.6e6


def write_prices(folder, *, until=timedelta(days=2)):
    """Write hourly prices from a day ago on: 100 EUR, and 200 EUR from an hour ago on."""
    times = [NOW - timedelta(days=1), NOW - timedelta(hours=1), NOW + until]
    rows = (
        f"{time.isoformat()},{rate}\n" for time, rate in zip(times, (100, 200, 300), strict=True)
    )
    (folder / "prices.csv").write_text("time,price\n" + "".join(rows))


def test_a_run_records_what_its_energy_cost(zeusrun):
    write_prices(zeusrun.folder)
    tariffs = {"price": {"currency": "EUR", "csv": "prices.csv"}, "carbon": {"g_per_kwh": 380}}
    code, result, seen = zeusrun.submit(zeusrun.job(args=BUSY, **tariffs, pue=1.25))
    trial = only_trial(result)
    assert (code, trial["currency"], trial["pue"]) == (0, "EUR", 1.25)
    kwh = trial["energy_j"] / J_PER_KWH * 1.25
    assert trial["price"] == pytest.approx(kwh * 200)
    assert trial["carbon_g"] == pytest.approx(kwh * 380)
    assert zeusrun.history() == [trial]
    assert "EUR" in seen
    assert "CO2e" in seen
    again = zeusrun("submit", "--like", "job-1-1", "--json", "--set", "pue=1")
    repeated = only_trial(json.loads(again.stdout.splitlines()[-1]))
    assert repeated["price"] == pytest.approx(repeated["energy_j"] / J_PER_KWH * 200)


def test_a_broken_tariff_is_refused_before_anything_starts(zeusrun):
    job = zeusrun.job(carbon={"csv": "missing.csv"})
    for arguments in ([], ["--dry-run"]):
        done = zeusrun("submit", job, *arguments)
        assert done.returncode == 2
        assert "'carbon.csv'" in done.stderr
    assert not (zeusrun.home / "runs").exists()
    assert zeusrun("history").returncode == 0


def test_a_run_that_outlasts_its_prices_has_none_and_says_so_once(zeusrun):
    write_prices(zeusrun.folder, until=timedelta(minutes=-45))  # the last one ends 30 minutes ago
    price = {"currency": "EUR", "csv": "prices.csv"}
    code, result, seen = zeusrun.submit(zeusrun.job(args=BUSY, price=price))
    trial = only_trial(result)
    assert (code, trial["status"], trial["price"], trial["currency"]) == (0, "REACHED", None, None)
    assert seen.count("its price is unknown: price.csv has rates from ") == 1
    assert sum("its price is unknown" in text for text in trial["warnings"]) == 1


@pytest.mark.long  # two submits; launcher/test_recover.py has the rule
def test_a_preempted_run_costs_what_all_its_parts_cost(zeusrun):
    given = ("--again", "--reaches", "4", "--epoch-s", "0.2")
    first = checkpoint_job(zeusrun, *given, price=FLAT)
    preempt(zeusrun, first)
    (cut,) = zeusrun.history()
    again = checkpoint_job(zeusrun, *given, price={"currency": "USD", "per_kwh": 1})
    trial = only_trial(zeusrun.submit(again)[1])
    assert trial["preemptions"] == 1
    if cut["energy_j"] is not None:  # the child only sleeps, and may use no CPU time
        assert cut["price"] == pytest.approx(cut["energy_j"] / J_PER_KWH * 360)
    assert (trial["price"], trial["currency"]) == (None, None)  # no sum of two currencies


def test_a_run_whose_launcher_died_has_the_price_of_its_energy_so_far(zeusrun):
    endless = {"max_epochs": 1000}
    child = zeusrun.start(
        "submit", zeusrun.job(args=["--gain", "0.0001"], objective=endless, price=FLAT)
    )
    live = zeusrun.run_dir() / "live.json"
    wait_for(lambda: live.exists() and json.loads(live.read_text())["price"])
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=300)
    assert zeusrun("repair").returncode == 0
    (lost,) = zeusrun.history()
    assert lost["status"] == "LOST"
    assert lost["price"] == pytest.approx(lost["energy_j"] / J_PER_KWH * 360)
