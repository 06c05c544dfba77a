"""What a report says of a job, from its trials."""

from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.view.report.values import KWH, noise_curve, resized, run, run_by_samples
from zeusrun.trial import Stage, TrialStatus
from zeusrun.trial.values import WorldChange
from zeusrun.view.report.facts import JobReport, build_facts
from zeusrun.view.report.headline import basis, headline, unbroken
from zeusrun.view.report.page import reports_json
from zeusrun.view.units import MINUS, UNKNOWN, electricity


def test_a_number_stays_on_the_line_of_its_unit():
    text = "saved 2.97 kWh (747 Wh to 5.26 kWh), 0.84 EUR, 1.30 kg CO2e (9 to 12 %), 512 saves 3 t"
    kept = "saved 2.97_kWh (747_Wh to 5.26_kWh), 0.84_EUR, 1.30_kg CO2e (9 to 12_%), 512 saves 3_t"
    assert unbroken(text) == kept.replace("_", "\N{NO-BREAK SPACE}")


PRICED = {"price": 0.3, "currency": "EUR", "carbon_g": 400.0}


def several(size, energy_kwh, numbers, **changes):
    """Runs with a batch size that was in use."""
    return [run(n, size, energy_kwh, stage=Stage.EXPLOIT, **changes) for n in numbers]


def test_the_headline_is_what_a_run_saves_with_the_net_of_everything():
    trials = several(32, 1.0, range(1, 7), **PRICED) + several(64, 0.5, range(7, 17), **PRICED)
    facts = build_facts("job", trials)
    text, good = headline(facts)
    assert text.startswith("batch size 64 saves 50\u00a0% of the cost of a run (4")
    assert text.endswith("\u00a0%) against 32")
    assert good is True
    # Each saved 0.5 kWh, priced with the 0.3 EUR and 400 g that its 0.5 kWh cost.
    net = facts.net
    assert net.energy_j.value == pytest.approx(5 * KWH, rel=0.03)
    assert net.money["EUR"].value == pytest.approx(3.0, rel=0.03)
    assert net.carbon_g.value == pytest.approx(4000, rel=0.03)
    said = basis(facts)
    assert said.startswith("16 recurrences since March 2026, exploring included: ")
    amount = r"[\d.]+ {} \([\d.]+ to [\d.]+ \w+\)"
    amounts = [amount.format(what) for what in ("kWh of energy", "EUR", "kg CO2e")]
    assert re.search(f"saved {', '.join(amounts)}", said)
    assert said.endswith("The cost of the default is known from 6 runs.")


def test_a_difference_in_doubt_is_no_claim_and_has_no_colour():
    facts = build_facts("job", [run(1, 32, 1.0), *several(64, 0.9, range(2, 6))])
    text, good = headline(facts)
    assert text.startswith(
        f"batch size 64 against 32: no difference in cost can be shown yet ({MINUS}"
    )
    assert good is None
    assert "no saving can be shown yet (" in basis(facts)


def test_a_loss_is_called_a_loss():
    trials = several(32, 1.0, range(1, 7)) + several(64, 2.0, range(7, 12))
    facts = build_facts("job", trials)
    text, good = headline(facts)
    assert text.startswith("batch size 64 costs 100\u00a0% more a run (")
    assert good is False
    assert " of energy (" in basis(facts)
    assert " more than always using the default." in basis(facts)
    assert "Exploring has cost more than it has saved so far" in basis(facts)


def test_a_saving_that_has_not_paid_for_exploring_says_when_it_will():
    lost = run(7, 16, 9.0, status=TrialStatus.STOPPED)
    again = run(7, 64, 0.5, attempt=2, stage=Stage.RETRY)
    trials = [*several(32, 1.0, range(1, 7)), lost, again, *several(64, 0.5, range(8, 13))]
    facts = build_facts("job", trials)
    text, good = headline(facts)
    assert text.startswith("batch size 64 saves 50\u00a0%")
    assert good is None  # not green
    assert re.search(r"it pays back in about 1[23] more recurrences\.", basis(facts))


def test_sums_that_do_not_count_every_recurrence_say_so():
    trials = several(32, 1.0, range(1, 7), **PRICED) + several(64, 0.5, range(7, 10), **PRICED)
    said = basis(build_facts("job", [*trials, *several(64, 0.5, (10,))]))
    assert said.endswith(
        "Of these 10 recurrences, the price is known for 9 and the carbon is known for 9."
    )


def test_a_lower_cost_with_more_energy_is_explained():
    mixed = {"eta_knob": 0.1}
    trials = several(32, 1.0, range(1, 7), **mixed, time_s=20_000.0)
    trials += several(64, 1.5, range(7, 14), **mixed, time_s=6_000.0)
    facts = build_facts("job", trials)
    text, good = headline(facts)
    assert "of the cost of a run" in text
    assert good is None  # the line below is of a loss
    assert " more than always using the default" in basis(facts)
    assert "By the cost, which also counts time (eta_knob 0.1), they saved " in basis(facts)


def test_what_is_not_known_is_said():
    missed = build_facts("job", [run(1, 32, status=TrialStatus.MISSED)])
    assert headline(missed) == ("has not reached its target yet", None)
    only = build_facts("job", [run(1, 32), run(2, 32)])
    assert headline(only)[0] == "has used batch size 32 only, so nothing is saved yet"
    forced = build_facts("job", [run(1, 32), run(2, 64, stage=Stage.FORCED)])
    assert headline(forced)[0] == "what it saves is not known yet"
    ignored = build_facts(
        "job", [run(1, 32, observed_batch_size=64), run(2, 32, observed_batch_size=64)]
    )
    assert headline(ignored)[0] == "has not trained with the batch size that it was to have"
    (remark,) = ignored.remarks
    assert remark.startswith("2 of 2 runs trained with another batch size than the chosen one (64)")
    other = build_facts("job", [run(1, 64)])
    assert headline(other)[0] == "what it saves is not known yet"
    assert basis(other) == "Batch size 32, the default, has never shown what it costs."
    free = build_facts("job", [run(1, 32, None, energy_source=None, cost_j=None)])
    assert headline(free) == ("has no known cost yet", None)
    assert free.sizes[0].time_s == 600.0
    unknown = build_facts("job", [run(1, 32, None, energy_source=None, eta_knob=0.0, cost_j=9.0)])
    assert (unknown.total.energy_j, unknown.total.unknown["energy"]) == (None, 1)


def test_a_recurrence_is_the_sum_of_its_attempts_and_unknown_if_one_is():
    stopped = run(1, 64, 0.5, status=TrialStatus.STOPPED)
    facts = build_facts("job", [stopped, run(1, 32, 1.0, attempt=2), run(2, 32, None, cost_j=None)])
    first, second = facts.recurrences
    assert (first.attempts, first.energy_j, first.time_s) == (2, 1.5 * KWH, 1200.0)
    assert first.saved.value == pytest.approx(-0.5 * KWH)
    assert (second.energy_j, second.cost_j) == (None, None)


def test_a_recurrence_that_still_runs_is_no_loss_yet():
    trials = [
        run(1, 32),
        run(2, 64, 0.5, status=TrialStatus.STOPPED),
        run(2, 32, None, attempt=2, status=TrialStatus.DISPATCHED, cost_j=None),
    ]
    facts = build_facts("job", trials)
    assert ([*facts.savings.by_trial], facts.total.runs) == ([], 2)
    assert [each.recurrence for each in facts.recurrences] == [1]


def test_after_a_change_of_the_default_counting_begins_again():
    trials = [run(1, 32), run(2, 64, 0.5), run(3, 64, default_batch_size=64)]
    trials.append(run(4, 128, 0.5, default_batch_size=64))
    facts = build_facts("job", trials)
    assert headline(facts)[0].startswith("batch size 128 against 64: ")
    assert [*facts.savings.by_trial] == ["job-3-1", "job-4-1"]


def test_a_forgotten_run_is_marked_and_counts_in_no_median():
    facts = build_facts("job", [run(1, 32), run(2, 32, 9.0, forgotten=True)])
    assert [each.status for each in facts.recurrences] == ["REACHED", "forgotten"]
    assert facts.recurrences[1].reached  # no cross in the figure
    assert facts.sizes[0].costs_j == (KWH,)


def test_an_attempt_that_never_trained_took_nothing():
    dead = run(
        1, 64, None, status=TrialStatus.FAILED, time_s=None, whole_steps=None, cost_j=None, curve=()
    )
    (only,) = build_facts("job", [dead, run(1, 32, 1.0, attempt=2)]).recurrences
    assert only.energy_j == KWH
    assert build_facts("job", [dead]).total.unknown["energy"] == 0


def test_adaptive_runs_and_other_hardware_are_kept_apart():
    trials = [
        run(1, 32, 5.0, gpu_model="old"),
        run(2, 32, 1.0),
        run(3, 32, 0.9, variant="noise-scale"),
        run(4, 32, 1.2),
    ]
    facts = build_facts("job", trials)
    assert [size.label for size in facts.sizes] == ["32", "32 noise-scale"]
    fixed, adaptive = facts.sizes
    assert fixed.costs_j == (1.0 * KWH, 1.2 * KWH)
    assert (adaptive.costs_j, adaptive.default, fixed.default) == ((0.9 * KWH,), False, True)
    assert sum(count for _, count in facts.left_out) == 1


def test_every_run_with_a_cost_is_a_dot_or_the_page_says_why_it_is_none():
    odd = {
        "shared its devices": {"shared": True},
        "forgotten by 'history --forget'": {"forgotten": True},
        "trained with another batch size": {"observed_batch_size": 16},
        "ended as CANCELLED": {"status": TrialStatus.CANCELLED},
        "had another objective, other hardware or another kind of energy": {"target": 0.7},
    }
    trials = [run(1, 64), *(run(n, 32, **changes) for n, changes in enumerate(odd.values(), 2))]
    trials += [run(8, 32, shared=True), run(9, 32, status=TrialStatus.MISSED), run(10, 32)]
    facts = build_facts("job", trials)
    dots = sum(len(size.costs_j) + len(size.failed_j) for size in facts.sizes)
    assert dots + sum(count for _, count in facts.left_out) == len(trials)
    assert dict(facts.left_out) == {**dict.fromkeys(odd, 1), "shared its devices": 2}
    everything = build_facts("job", [run(1, 32, shared=True)])
    assert everything.left_out == (("shared its devices", 1),)


def test_a_run_that_changed_its_ranks_is_named_and_counts_for_no_median():
    ranks = (WorldChange(0.0, 0, 1), WorldChange(1.0, 0, 4))
    facts = build_facts("job", [run(1, 32, 1.0), run(2, 32, 0.2, world_sizes=ranks)])
    assert facts.hardware.endswith(", 1→4 ranks")
    (size,) = facts.sizes
    assert (size.runs, size.costs_j) == (2, (1.0 * KWH,))
    assert facts.left_out == (("changed the number of ranks", 1),)
    cpu = build_facts("job", [run(1, 32, gpu_model=None, gpu_count=0, world_sizes=ranks)])
    assert cpu.hardware == "CPU, 1→4 ranks"


def test_the_throughput_of_each_number_of_ranks_is_the_mean_while_it_trained():
    (found,) = build_facts("job", [run(1, 64), resized(2)]).ranks
    assert (found.trial, found.size, found.steps) == ("job-2-1", "32", (0, 100, 250, 300))
    assert found.rates == (320.0, 480.0, 160.0)
    (scaled,) = build_facts("job", [resized(3, variant="ranks")]).ranks
    assert scaled.rates == (160.0, 480.0, 80.0)  # 32 samples are those of the first two ranks


def test_the_throughput_is_unknown_without_steps_or_where_all_ranks_began_anew():
    (found,) = build_facts("job", [resized(steps=None, whole_time_s=None)]).ranks
    assert found.rates == (320.0, 480.0, None)
    (found,) = build_facts("job", [resized(steps=200)]).ranks
    assert found.rates == (320.0, 480.0, None)
    bare = (WorldChange(0.0, 0, 1), WorldChange(1.0, 0, 4))
    (found,) = build_facts("job", [resized(steps=None, world_sizes=bare)]).ranks
    assert (found.steps, found.rates) == ((0, 0, 0), (None, None))


def test_the_newest_runs_that_changed_their_ranks_are_shown():
    facts = build_facts("job", [resized(n) if n % 2 else run(n, 32) for n in range(1, 12)])
    assert [each.trial for each in facts.ranks] == ["job-5-1", "job-7-1", "job-9-1", "job-11-1"]


def test_medians_ignore_runs_without_the_target_and_those_are_lower_bounds():
    trials = [run(n, 64, cost) for n, cost in enumerate((1.0, 2.0, 9.0), 1)]
    trials.append(run(4, 64, 0.1, status=TrialStatus.STOPPED, reason="too expensive"))
    facts = build_facts("job", trials)
    (size,) = facts.sizes
    assert (size.cost_j, size.failed_j, size.reached) == (2.0 * KWH, (0.1 * KWH,), 3)
    assert [each.reason for each in facts.failures] == ["too expensive"]


def test_at_most_eight_curves_of_a_batch_size_are_drawn_and_long_ones_are_thinned():
    from zeusrun.trial import CurvePoint

    long = tuple(CurvePoint(n, 1.0 * n, 1.0 * n, 0.5) for n in range(1, 1001))
    trials = [run(n, 64, curve=long) for n in range(1, 12)]
    facts = build_facts("job", [*trials, run(12, 128)])
    assert [each.trial for each in facts.curves] == [*(f"job-{n}-1" for n in range(4, 13))]
    first = facts.curves[0]
    assert len(first.epochs) <= 151
    assert (first.epochs[0], first.epochs[-1]) == (1, 1000)


def test_what_zeusrun_took_is_listed():
    check = {"stage": Stage.SPEED_CHECK, "status": TrialStatus.CANCELLED}
    trials = [
        run(1, 64, 0.1, **check),
        run(1, 32, 1.0, attempt=2, profiling_cost_j=7.0),
        run(2, 64, 0.4, status=TrialStatus.STOPPED),
        run(2, 32, 0.2, attempt=2, status=TrialStatus.FAILED),
    ]
    rows = {
        each.name.split(" ")[0] + each.name[-4:]: each
        for each in build_facts("job", trials).overhead
    }
    assert [(each.count, each.cost_j) for each in rows.values()] == [
        (4, None),
        (1, 0.1 * KWH),
        (1, 7.0),
        (1, 0.4 * KWH),
        (1, 0.2 * KWH),
    ]


def test_what_followed_the_target_is_listed_because_no_sum_has_it():
    whole = {"whole_time_s": 9.0, "whole_energy_j": 120.0}
    went_on = run(1, 64, 0.1, time_s=5.0, energy_j=50.0, **whole)
    ended = run(2, 64, 0.1, time_s=9.0, energy_j=120.0, **whole)
    missed = run(3, 64, 0.1, time_s=5.0, status=TrialStatus.MISSED, **whole)
    facts = build_facts("job", [went_on, ended, missed])
    (row,) = [each for each in facts.overhead if "after the target" in each.name]
    assert (row.count, row.time_s, row.energy_j, row.cost_j) == (1, 4.0, 70.0, None)


@pytest.mark.parametrize(
    ("joules", "text"),
    [
        (None, UNKNOWN),
        (12.4 * KWH, "12.4 kWh"),
        (-0.5 * KWH, f"{MINUS}500 Wh"),
        (0.01 * KWH, "10.0 Wh"),
        (-115.0, f"{MINUS}115 J"),
        (0.0, "0 J"),
        (2345.6 * KWH, "2.35 MWh"),
    ],
)
def test_energy_is_written_as_a_bill_has_it(joules, text):
    assert electricity(joules) == text


AMOUNTS = st.none() | st.floats(0, 1e9) | st.just(1.7e308)
TRIALS = st.lists(
    st.fixed_dictionaries(
        {
            "size": st.sampled_from([16, 32, 64]),
            "again": st.booleans(),
            "status": st.sampled_from(TrialStatus),
            "stage": st.sampled_from(Stage),
            "energy_j": AMOUNTS,
            "cost_j": AMOUNTS,
            "time_s": AMOUNTS,
            "startup_s": AMOUNTS,
            "price": AMOUNTS,
            "currency": st.sampled_from([None, "EUR", "CHF"]),
            "carbon_g": AMOUNTS,
            "shared": st.none() | st.booleans(),
            "forgotten": st.booleans(),
            "variant": st.sampled_from([None, "noise-scale"]),
            "learning_rate": st.sampled_from([None, 0.1]),
            "default_batch_size": st.sampled_from([None, 32]),
            "eta_knob": st.sampled_from([0.0, 0.5, 1.0]),
            "started_at": st.sampled_from(["2026-03-01T00:00:00Z", "no time", ""]),
        }
    ),
    min_size=1,
    max_size=8,
)


@given(TRIALS)
@settings(max_examples=60)
def test_any_history_has_facts_that_can_be_written(values):
    recurrence, attempt, trials = 0, 1, []
    for each in values:
        again = each.pop("again") and recurrence
        recurrence, attempt = (recurrence, attempt + 1) if again else (recurrence + 1, 1)
        trials.append(run(recurrence, each.pop("size"), None, attempt, **each))
    if not any(trial.status.finished for trial in trials):
        return
    facts = build_facts("job", trials)
    report = JobReport(facts)
    assert json.loads(reports_json([report]))["jobs"][0]["job"] == "job"
    assert all(math.isfinite(each.cost_j) for each in facts.recurrences if each.cost_j is not None)


def test_a_job_that_is_compared_by_samples_has_samples_everywhere():
    hidden = run(4, 64, whole_steps=None)
    trials = [
        run(1, 32, samples=600, whole_samples=600),
        run_by_samples(2, 32),
        run_by_samples(3, 64),
        hidden,
    ]
    facts = build_facts("job", trials)
    assert facts.unit == "samples"
    drawn = {each.trial: each.epochs[-1] for each in facts.curves}
    assert drawn == {"job-1-1": 600, "job-2-1": 250_000, "job-3-1": 250_000}
    assert facts.curves_left_out == "1 run left out: its number of samples is unknown"
    assert [each.samples for each in facts.recurrences] == [600, 200_000, 200_000, None]
    assert [size.samples for size in facts.sizes] == [100_300, 200_000]
    assert facts.sizes[0].epochs == 2  # for programs
    normal = build_facts("job", [run(1, 32, samples=600, whole_samples=600)])
    assert (normal.unit, normal.curves[0].epochs[-1], normal.curves_left_out) == ("epochs", 3, "")


def test_the_noise_scale_is_that_of_the_newest_run_of_each_batch_size_that_measured_it():
    trials = [run(n, (32, 64, 16)[n % 3], noise_curve=noise_curve(n)) for n in range(1, 10)]
    trials.append(run(10, 64))
    trials.append(run(11, 32, variant="noise-scale", noise_curve=noise_curve(11)))
    found = build_facts("job", trials).noise
    assert [(each.trial, each.size) for each in found] == [
        ("job-8-1", "16"),
        ("job-9-1", "32"),
        ("job-11-1", "32 noise-scale"),
        ("job-7-1", "64"),
    ]
    assert found[1].at == (0.75, 1.75, 2.75, 3.75, 4.75, 5.75)
    assert found[1].points == noise_curve(9)


def test_points_without_an_epoch_and_odd_ones_are_left_out():
    whole = noise_curve()
    first = [whole[0]._replace(epoch=None), whole[1]._replace(low=0.0, value=0.0, high=0.0)]
    odd = run(1, 32, noise_curve=(*first, *whole[2:5], whole[5]._replace(low=1e300)))
    (found,) = build_facts("job", [odd]).noise
    assert found.points == whole[2:5]
    single = run(1, 32, noise_curve=whole[:1])
    assert build_facts("job", [single]).noise == ()
