"""The facts of each recurrence and of each batch size."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from tests.analysis.test_savings import default_then, run
from zeusrun.analysis.recurrences import build_recurrences, build_sizes
from zeusrun.analysis.savings import find_savings
from zeusrun.trial import CurvePoint, EnergySource, Interruption, Stage, TrialStatus

WHOLE = (CurvePoint(10, 30.0, 10.0, 0.9),)
SPENT = {"price": 0.5, "currency": "EUR", "carbon_g": 30.0, "pue": 1.2}


def test_a_recurrence_has_the_sums_of_its_attempts_and_the_rest_of_the_last_one():
    trials = default_then(16, 60)
    failed = run(19, 64, 20, status=TrialStatus.MISSED, started_at="2025-07-01T00:00:00Z", **SPENT)
    last = run(19, 16, 60, attempt=2, stage=Stage.EXPLOIT, time_s=70.0, **SPENT)
    last = replace(last, samples=600, curve=(CurvePoint(60, 70.0, 60.0, 0.9),))
    savings = find_savings([*trials, failed, last])
    facts = build_recurrences([*trials, failed, last], savings)
    assert [each.recurrence for each in facts] == list(range(1, 20))
    assert dataclasses.asdict(facts[-1]) == {
        "recurrence": 19,
        "trial": "job-19-2",
        "started_at": "2025-07-01T00:00:00Z",
        "size": "16",
        "is_default": False,
        "forced": False,
        "attempts": 2,
        "status": "REACHED",
        "reached": True,
        "cost_j": 80.0,
        "energy_j": 80.0,
        "time_s": 90.0,
        "epochs": 60,
        "samples": 600,
        "saved": dataclasses.asdict(savings.by_trial["job-19-2"]),
        "saved_share": savings.shown_share("job-19-2") and pytest.approx(
            dataclasses.asdict(savings.shown_share("job-19-2"))
        ),
        "default_j": savings.default_j,
        "price": 1.0,
        "currency": "EUR",
        "carbon_g": 60.0,
    }  # fmt: skip
    assert savings.by_trial["job-19-2"].value > 0


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({}, ("REACHED", True, False)),
        ({"forgotten": True}, ("forgotten", True, False)),
        ({"status": TrialStatus.MISSED}, ("MISSED", False, False)),
        ({"default_batch_size": 16}, ("REACHED", True, True)),
        ({"default_batch_size": None}, ("REACHED", True, True)),
    ],
)
def test_a_recurrence_is_named_by_the_end_of_its_last_attempt(changes, facts):
    (found,) = build_recurrences([run(1, 16, **changes)], find_savings([]))
    assert (found.status, found.reached, found.is_default) == facts
    assert (found.saved, found.default_j, found.price, found.currency) == (None,) * 4


def test_a_batch_size_has_the_medians_of_its_runs_that_are_like_the_newest():
    usual = {"samples": 100, "power_limit_w": 200.0}
    trials = [
        run(1, 32, 10, **usual),
        run(2, 16, 8, time_s=20.0, energy_source=EnergySource.ESTIMATED, **usual),
        run(3, 16, 4, status=TrialStatus.MISSED),
        run(4, 16, 6, target=0.7),  # another objective
        run(
            5, 16, 10, time_s=30.0, curve=WHOLE, **{**usual, "samples": 300, "power_limit_w": 250.0}
        ),
    ]
    (small, default), left_out = build_sizes(trials)
    assert (small.label, small.batch_size, small.variant, small.default) == ("16", 16, None, False)
    assert (small.runs, small.share, small.reached) == (4, 0.8, 3)
    assert (small.costs_j, small.failed_j) == ((10.0,), (4.0,))
    medians = (small.cost_j, small.energy_j, small.time_s, small.epochs, small.samples)
    assert (*medians, small.power_limit_w) == (10.0, 10.0, 30.0, 10, 300, 250.0)
    other = run(6, 16, 5, status=TrialStatus.MISSED, target=0.7)  # it shows no cost
    assert build_sizes([*trials, other])[0][0].costs_j == (10.0,)
    assert (default.label, default.default, default.runs, default.share) == ("32", True, 1, 0.2)
    assert default.costs_j == (10.0,)
    assert left_out.total() == 2  # the other objective, and an estimate

    adaptive = [run(n, 16, variant=variant) for n, variant in enumerate(("b", None, "a"))]
    assert [each.label for each in build_sizes(adaptive)[0]] == ["16", "16 a", "16 b"]


def test_a_batch_size_says_whether_its_costs_are_those_that_were_paid():
    curve = tuple(CurvePoint(n, n + 2.0 * (n > 1), float(n), n / 20) for n in range(1, 11))
    cut = run(2, 16, 10, curve=curve, time_s=12.0, interruptions=(Interruption(1.5, 1),))
    (plain,), _ = build_sizes([run(1, 16, 10)])
    (cleaned,), _ = build_sizes([run(1, 16, 10), cut])
    assert (plain.cleaned, cleaned.cleaned) == (False, True)


@pytest.mark.parametrize("estimated", [(), (0,), (0, 1)])
def test_one_estimate_makes_the_energy_of_a_batch_size_one(estimated):
    trials = [run(n, 16, 10, eta_knob=0.0) for n in range(2)]
    for n in estimated:
        trials[n] = replace(trials[n], energy_source=EnergySource.ESTIMATED)
    (facts,), _ = build_sizes(trials)
    assert facts.estimated is bool(estimated)
