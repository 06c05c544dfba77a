"""What all runs took, by job, month and GPU model."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import DONE, PREEMPTED, build_trial
from zeusrun.analysis.amounts import NO_GPU, add_up, find_totals, rate_of, time_after_target
from zeusrun.clock import local_time
from zeusrun.trial import EnergySource, Outcome, TrialStatus

EUR = {"price": 0.5, "currency": "EUR", "carbon_g": 300.0, "pue": 1.2}
METERED = EnergySource.COUNTER
NEVER_TRAINED = Outcome(TrialStatus.FAILED, "it crashed", "2025-06-01T13:00:00.000+00:00")


def run(outcome=DONE, job="job", started_at="2025-06-01T12:00:00.000+00:00", gpu=None, **changes):
    trial = build_trial(job=job, started_at=started_at, gpu_model=gpu)
    return trial.finish(replace(outcome, **changes))


@pytest.fixture
def tokyo(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "x"])
def test_a_time_that_no_calendar_has_is_cut(time):
    assert local_time(time) is None
    assert [total.name for total in find_totals([build_trial(1, started_at=time)], "month")] == [
        time[:7]
    ]


def test_runs_are_grouped_by_job():
    totals = find_totals([run(job="b"), run(job="a"), run(job="b")], "job")
    assert [(total.name, total.runs, total.energy_j) for total in totals] == [
        ("a", 1, 40.0), ("b", 2, 80.0),
    ]  # fmt: skip


@pytest.mark.usefixtures("tokyo")
def test_a_month_is_that_of_the_start_in_local_time():
    starts = ["2025-06-30T14:59:59.000+00:00", "2025-06-30T15:00:00.000+00:00"]
    totals = find_totals([run(started_at=start) for start in reversed(starts)], "month")
    assert [total.name for total in totals] == ["2025-06", "2025-07"]


@pytest.mark.parametrize(("continued", "month"), [(False, "2025-06"), (True, "2025-07")])
def test_a_run_that_was_continued_counts_in_the_month_of_its_end(continued, month):
    end = "2025-07-20T12:00:00.000+00:00"
    cut = run(PREEMPTED, started_at="2025-06-10T12:00:00.000+00:00")
    if continued:
        cut = cut.resume("2025-07-10T12:00:00.000+00:00")
        assert find_totals([cut], "month")[0].name == "2025-07"
        cut = cut.finish(replace(DONE, finished_at=end))
    else:
        cut = cut.finish(cut.ended_as(TrialStatus.CANCELLED, None, "cancelled", end))
    assert find_totals([cut], "month")[0].name == month


def test_a_damaged_time_is_a_month_of_its_own():
    assert find_totals([run(started_at="some time")], "month")[0].name == "some ti"


def test_a_gpu_is_its_model():
    totals = find_totals([run(), run(gpu="H100"), run(gpu="H100")], "gpu")
    assert [(total.name, total.runs) for total in totals] == [("H100", 2), (NO_GPU, 1)]
    assert [total.to_json("gpu")["gpu"] for total in totals] == ["H100", None]
    assert "name" not in totals[0].to_json("gpu")


def test_every_try_counts():
    tries = [run(), run(status=TrialStatus.STOPPED), run(PREEMPTED), run(NEVER_TRAINED)]
    (total,) = find_totals(tries, "job")
    assert (total.runs, total.energy_j, total.time_s) == (4, 40.0 + 40.0 + 420.0, 4.0 + 4.0 + 8.5)
    assert total.cost_j == 100.0 + 100.0 + 486.25


@pytest.mark.parametrize(
    ("energies_j", "amounts", "rate"),
    [
        ((30.0, 10.0), (3.0, 5.0), 0.2),
        ((30.0, 0.0), (3.0, None), 0.1),  # what took no energy has no amount
        ((30.0, None), (3.0, None), 0.1),
        ((30.0, 10.0), (3.0, None), None),
        ((30.0, 10.0), (3.0, 1e300), None),  # of a damaged record
        ((0.0, None), (0.0, 0.0), None),
        ((), (), None),
    ],
)
def test_what_a_joule_counts_is_that_of_all_attempts_with_energy(energies_j, amounts, rate):
    own = [run(energy_j=energy_j) for energy_j in energies_j]
    assert rate_of(own, amounts) == rate


def test_only_a_run_that_trained_on_after_its_target_has_time_after_it():
    late = run(time_s=4.0, whole_time_s=6.0)
    assert time_after_target(late) == 2.0
    for other in (
        {"time_s": 6.0},
        {"time_s": None},
        {"status": TrialStatus.STOPPED},
        {"whole_time_s": None},
    ):
        assert time_after_target(replace(late, **other)) is None


def test_currencies_are_not_added():
    total = add_up("all", [run(**EUR), run(**EUR), run(**{**EUR, "currency": "USD"})])
    assert total.prices == {"EUR": 1.0, "USD": 0.5}
    assert total.carbon_g == 900.0


def test_what_is_unknown_is_counted_and_never_zero():
    total = add_up("all", [run(energy_j=None, cost_j=None), run(NEVER_TRAINED)])
    assert (total.energy_j, total.cost_j, total.prices, total.carbon_g) == (None, None, {}, None)
    assert total.unknown == {"energy": 1, "price": 1, "carbon": 1}
    some = add_up("all", [run(**EUR), run()])
    assert (some.prices, some.unknown) == ({"EUR": 0.5}, {"energy": 0, "price": 1, "carbon": 1})


def test_damaged_records_do_not_overflow():
    total = add_up("all", [run(energy_j=1e308, price=1e308, currency="EUR")] * 2)
    assert (total.energy_j, total.prices, total.time_s) == (None, {}, 8.0)


def test_energy_that_was_estimated_is_told_apart():
    total = add_up("all", [run(), run(energy_source=METERED)])
    assert (total.energy_j, total.estimated_j) == (80.0, 40.0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.floats(-10, 10)), min_size=1))
def test_the_groups_add_up_to_the_whole(runs):
    trials = [run(job=job, **{**EUR, "price": price}) for job, price in runs]
    totals, whole = find_totals(trials, "job"), add_up("all", trials)
    assert sum(total.runs for total in totals) == whole.runs == len(trials)
    parts = sum(total.prices.get("EUR", 0.0) for total in totals)
    assert parts == pytest.approx(whole.prices.get("EUR", 0.0), abs=1e-9)
    assert sum(total.unknown["price"] for total in totals) == whole.unknown["price"]
