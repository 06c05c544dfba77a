"""What choosing batch sizes has saved against the default every time, and how sure that is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.bandit.runs import run as seen
from tests.bandit.scripts import problem
from tests.factories import build_trial
from zeusrun.analysis import savings
from zeusrun.analysis.estimates import Estimate, add_estimates, name_ends
from zeusrun.analysis.run_costs import _doubt_of_one, _find_speeds, draw_log_epochs
from zeusrun.analysis.savings import find_net_amounts, find_savings
from zeusrun.bandit.auto.evidence import gather
from zeusrun.trial import CurvePoint, EnergySource, Interruption, PowerPoint, Stage, TrialStatus
from zeusrun.trial.values import WorldChange

COUNTER, ESTIMATED = EnergySource.COUNTER, EnergySource.ESTIMATED
FAILED = [
    TrialStatus.MISSED,
    TrialStatus.STOPPED,
    TrialStatus.OOM,
    TrialStatus.FAILED,
    TrialStatus.CANCELLED,
    TrialStatus.LOST,
]


def run(recurrence, arm=32, epochs=100, attempt=1, per_epoch=1.0, **changes):
    """A run that has reached the target, of 1 J an epoch; the default batch size is 32."""
    values = {
        "status": TrialStatus.REACHED,
        "global_batch_size": arm,
        "epochs": epochs,
        "max_epochs": 1000,
        "time_s": float(epochs),
        "energy_j": per_epoch * epochs,
        "cost_j": per_epoch * epochs,
        "energy_source": COUNTER,
        "eta_knob": 1.0,
        "max_power_w": 100.0,
    }
    values |= changes
    if "cost_j" not in changes:
        values["cost_j"] = values["energy_j"]
    return build_trial(recurrence, attempt, **values)


def default_then(arm, epochs, runs=12, defaults=6, **changes):
    """Runs of the default of 100 epochs, and then of another batch size."""
    before = [run(n, **changes) for n in range(1, defaults + 1)]
    count = range(defaults + 1, defaults + runs + 1)
    return before + [run(n, arm, epochs, stage=Stage.EXPLOIT, **changes) for n in count]


def saved(trials):
    """The joules that each recurrence saved, rounded."""
    found = find_savings(trials).by_trial
    return {name.removeprefix("job-"): round(each.value) for name, each in found.items()}


def test_what_many_runs_show_is_claimed_with_its_range():
    found = find_savings(default_then(16, 60))
    assert (found.default, found.in_use, found.default_runs) == (32, 16, 6)
    assert found.share.value == pytest.approx(0.4, abs=0.03)
    assert 0.25 < found.share.low < found.share.value < found.share.high < 0.55
    assert found.default_j == pytest.approx(100, rel=0.03)
    assert found.net.value == pytest.approx(12 * 40, rel=0.1)
    assert (found.ended, len(found.by_trial), found.since) == (
        18,
        18,
        "2025-06-01T12:00:00.000+00:00",
    )


def test_a_loss_is_claimed_as_well():
    found = find_savings(default_then(16, 160))
    assert found.share.high < -0.3
    assert found.net.high < 0
    assert found.pays_back_in is None


@pytest.mark.parametrize("jobs", [15, pytest.param(60, marks=pytest.mark.long)])
def test_no_look_at_equal_batch_sizes_shows_a_difference_more_often_than_it_may(jobs):
    """Batch sizes that are alike: a claim beyond 5 % in about 5 % of jobs."""
    claims = 0
    for seed in range(jobs):
        epochs = np.round(100 * np.random.default_rng(seed).lognormal(0, 0.14, 20)).astype(int)
        arms = [32, 16, 64, *([16] * 17)]
        runs = [
            run(n, arm, int(taken), stage=Stage.EXPLOIT)
            for n, (arm, taken) in enumerate(zip(arms, epochs, strict=True), 1)
        ]
        share = find_savings(runs).share
        claims += share.is_shown and abs(share.value) > 0.05
    assert claims <= 1 + jobs / 20


def test_a_claim_needs_three_looks_in_a_row():
    trials = default_then(16, 40, runs=3, defaults=6)
    assert [find_savings(trials[:n]).share.is_shown for n in (7, 8, 9)] == [False, False, True]


def test_a_run_that_was_lucky_has_saved_no_more_than_the_others():
    trials = default_then(16, 60)
    trials[-1] = run(18, 16, 30, stage=Stage.EXPLOIT)
    own = {saved(trials)[f"{n}-1"] for n in (16, 17, 18)}
    assert len(own) == 1


def test_the_range_of_few_runs_of_the_default_is_wider():
    few, many = (find_savings(default_then(16, 60, defaults=n)).share for n in (1, 10))
    assert few.high - few.low > 1.5 * (many.high - many.low)


@pytest.mark.parametrize("status", FAILED)
def test_an_attempt_with_another_batch_size_that_failed_was_paid_for(status):
    lost = run(19, 64, 30, status=status)
    again = run(19, 16, 60, attempt=2, stage=Stage.EXPLOIT)
    trials = [*default_then(16, 60), lost, again]
    found = saved(trials)
    assert found["19-2"] == found["18-1"] - 30
    assert saved(trials[:-1])["19-1"] == -30


def test_that_the_default_failed_is_not_charged_to_exploring():
    missed = run(19, status=TrialStatus.MISSED)
    again = run(19, 16, 60, attempt=2, stage=Stage.RETRY)
    trials = default_then(16, 60)
    found = saved([*trials, missed, again])
    assert found["19-2"] == found["18-1"]
    assert "19-1" not in saved([*trials, missed])


def test_what_the_user_chose_is_no_saving_and_still_shows_what_runs_cost():
    forced = [run(n, 16, 60, stage=Stage.FORCED) for n in range(7, 13)]
    trials = default_then(16, 60, runs=0) + forced
    assert not find_savings(trials).explored
    chosen = run(13, 16, 60, stage=Stage.EXPLOIT)
    found = find_savings([*trials, chosen])
    assert [*found.by_trial][-1] == "job-13-1"
    assert not any(f"job-{n}-1" in found.by_trial for n in range(7, 13))
    assert found.share.is_shown


def test_the_default_alone_claims_nothing():
    found = find_savings([run(n, epochs=80 + n) for n in range(1, 9)])
    assert (found.explored, found.by_trial, found.share, found.net) == (False, {}, None, None)
    assert find_savings([]).ended == 0


def test_when_the_default_is_in_use_nothing_is_saved_but_what_exploring_cost():
    tried = run(7, 64, 30, status=TrialStatus.STOPPED, stage=Stage.EXPLORE)
    back = run(7, attempt=2, stage=Stage.RETRY)
    trials = [*default_then(16, 100, runs=0), tried, back]
    found = find_savings([*trials, *(run(n, stage=Stage.EXPLOIT) for n in range(8, 12))])
    assert (found.in_use, found.share, found.net) == (
        32,
        Estimate(0, 0, 0),
        Estimate(-30, -30, -30),
    )
    assert found.so_far == [0.0] * 6 + [-30.0] * 5


OTHERS = {
    "the objective": {"target": 0.9},
    "the hardware": {"gpu_model": "another"},
    "the hardware ": {"world_size": 4},
    "how energy is measured": {"energy_source": ESTIMATED},
    "how the batch size adapts, or the ranks agree": {"variant": "noise-scale"},
}


@pytest.mark.parametrize("what", OTHERS)
def test_runs_of_the_default_under_other_conditions_are_no_measure_and_it_is_said_why(what):
    trials = default_then(16, 60)
    before = [replace(each, **OTHERS[what]) for each in trials[:6]]
    moved = [replace(each, started_at="2025-07-03T12:00:00.000+00:00") for each in trials[6:]]
    found = find_savings([*before, *moved])
    assert (found.share, found.net, found.by_trial) == (None, None, {})
    assert found.note == (
        f"{what.strip()} changed on 3 July, and batch size 32, the default, has not shown what it costs since: "
        "counting begins again when it has (policy.control)"
    )


def test_another_eta_knob_reads_what_runs_cost_anew_and_counts_from_now_on():
    trials = default_then(16, 60)
    before = [replace(each, eta_knob=0.5) for each in trials[:12]]
    found = find_savings([*before, *trials[12:]])
    assert found.share == find_savings(trials).share
    assert [*found.by_trial] == [f"job-{n}-1" for n in range(13, 19)]


@pytest.mark.parametrize(
    "other",
    [
        {"forgotten": True},
        {"status": TrialStatus.MISSED},
        {"energy_j": None},
        {"energy_j": 0.0},
        {"observed_batch_size": 64},
    ],
    ids=str,
)
def test_runs_of_the_default_that_prove_nothing_are_no_measure(other):
    trials = default_then(16, 60)
    found = find_savings(
        [*(replace(each, cost_j=None, **other) for each in trials[:6]), *trials[6:]]
    )
    assert (found.share, found.by_trial) == (None, {})
    assert found.note == "batch size 32, the default, has never shown what it costs"


@pytest.mark.parametrize(
    "other",
    [
        {"forgotten": True},
        {"status": TrialStatus.DISPATCHED},
        {"status": TrialStatus.PREEMPTED},
        {"energy_j": None},
        {"default_batch_size": None},
    ],
    ids=str,
)
def test_a_recurrence_with_such_an_attempt_is_not_compared(other):
    lost = replace(run(19, 64, 30, status=TrialStatus.STOPPED), cost_j=None, **other)
    trials = [*default_then(16, 60), lost, run(19, 16, 60, attempt=2)]
    known = other == {"default_batch_size": None}  # then it was nobody's choice
    assert ("19-2" in saved(trials)) == known


def test_a_history_that_begins_in_the_middle_of_a_recurrence_leaves_it_out():
    assert "1-2" not in saved([run(1, attempt=2), *default_then(16, 60)[1:]])


def test_an_attempt_that_never_trained_has_cost_nothing():
    trials = default_then(16, 60)
    nothing = dict.fromkeys(("time_s", "energy_j", "cost_j", "epochs"))
    crashed = replace(run(19, 64, status=TrialStatus.OOM), **nothing)
    found = saved([*trials, crashed, run(19, 16, 60, attempt=2, stage=Stage.EXPLOIT)])
    assert found["19-2"] == found["18-1"]


def test_a_claim_goes_away_with_new_data_and_one_sentence_says_why():
    trials = default_then(16, 60)
    moved = [
        replace(run(n, 16, 6), started_at="2025-05-03T12:00:00.000+00:00", stage=Stage.EXPLOIT)
        for n in range(19, 27)
    ]
    found = find_savings([*trials, *moved])
    assert (found.share, found.by_trial) == (None, {})
    assert found.note == (
        "the training changed on 3 May, and batch size 32, the default, has not shown what it costs since: "
        "counting begins again when it has (policy.control)"
    )
    again = find_savings([*trials, *moved, *(run(n, epochs=10) for n in range(27, 31))])
    assert again.since == "2025-05-03T12:00:00.000+00:00"
    assert again.share.value == pytest.approx(0.4, abs=0.06)


def test_an_edit_of_the_script_that_changes_the_epochs_begins_again():
    """It once "saved 89 %"."""
    trials = [replace(each, fingerprint={"script": "a"}) for each in default_then(16, 100)]
    edited = [
        replace(run(n, 16, 11, stage=Stage.EXPLOIT), fingerprint={"script": "b"})
        for n in range(19, 25)
    ]
    found = find_savings([*trials, *edited])
    assert found.share is None
    assert "the training changed" in found.note


def test_a_harmless_edit_keeps_the_claim():
    trials = [replace(each, fingerprint={"script": "a"}) for each in default_then(16, 60)]
    edited = [
        replace(run(n, 16, 60, stage=Stage.EXPLOIT), fingerprint={"script": "b"})
        for n in range(19, 25)
    ]
    found = find_savings([*trials, *edited])
    assert found.share.is_shown
    assert len(found.by_trial) == 24


@pytest.mark.parametrize(
    ("rate", "alike"), [(0.1, True), (0.05, True), (0.1 / 2**0.5, True), (0.3, False)]
)
def test_a_learning_rate_must_belong_to_the_rule_of_the_default_s(rate, alike):
    trials = default_then(16, 60, learning_rate=0.1)
    trials[6:] = [replace(each, learning_rate=rate) for each in trials[6:]]
    assert (find_savings(trials).share is not None) == alike


def test_a_new_rule_of_the_learning_rate_does_not_rewrite_what_was_saved():
    trials = default_then(16, 60, learning_rate=0.1)
    later = [run(n, 16, 300, learning_rate=0.7, stage=Stage.EXPLOIT) for n in range(19, 23)]
    assert find_savings([*trials, *later]).share is None
    back = [run(n, 16, 60, learning_rate=0.1, stage=Stage.EXPLOIT) for n in range(23, 25)]
    assert find_savings([*trials, *later, *back]).share.value == pytest.approx(0.4, abs=0.03)


def test_a_speed_is_that_of_the_runs_nearest_to_the_last_one_of_the_default():
    costs = [100.0] * 8 + [300.0] * 4  # the machine has become slower
    slower = [seen(16, per_epoch=cost, recurrence=n) for n, cost in enumerate(costs)]
    runs = [*slower[:5], seen(64, recurrence=5), *slower[5:]]
    assert _find_speeds(64, 16, gather(problem(), runs)) == [100.0] * 3
    assert _find_speeds(64, 64, gather(problem(), runs)) == [100.0]
    edited = [each._replace(differs="script:a") for each in slower] + [seen(64, recurrence=5)]
    assert _find_speeds(64, 16, gather(problem(), edited)) == [300.0] * 3
    scattered = 100 * np.exp(0.2 * np.random.default_rng(0).standard_normal(20))
    noisy = [seen(16, per_epoch=cost, recurrence=n) for n, cost in enumerate(scattered)]
    found = _find_speeds(64, 16, gather(problem(), [*noisy, seen(64, recurrence=20)]))
    assert found == scattered[-9:].tolist()
    limits = enumerate([(100.0, 150), (101.0, 150), (900.0, 250), (102.0, 150)])
    held = [seen(64, per_epoch=j, recurrence=n, power_limit_w=w) for n, (j, w) in limits]
    assert _find_speeds(64, 64, gather(problem(), held)) == [100.0, 101.0, 102.0]


def test_the_epochs_of_one_odd_run_alone_are_drawn_wide():
    spread = []
    for times in (1, 2):
        evidence = gather(problem(), [*[seen(64)] * 5, *[seen(16, 100)] * times])
        spread.append(draw_log_epochs(64, [16, 64], evidence).std(axis=0))
    assert spread[0][0] > 1 > spread[1][0]
    assert spread[0][1] < 0.5


@pytest.mark.parametrize("per_epoch", [3.0, 0.9])
def test_a_shared_machine_counts_by_its_epochs(per_epoch):
    trials = default_then(16, 60)
    other = run(19, 16, 60, per_epoch=per_epoch, shared=True, stage=Stage.EXPLOIT)
    found = saved([*trials, other])
    assert found["19-1"] == found["18-1"]


def interrupted(recurrence, arm=32, lost_s=96.0, left=1, **changes):
    """A run of 4 epochs, 1 s and 25 J each, that lost some seconds."""
    times = [float(n + (lost_s if n > left else 0.0)) for n in range(1, 5)]
    return run(
        recurrence,
        arm,
        4,
        curve=tuple(CurvePoint(n, t, 25.0 * t, 0.1 * n) for n, t in enumerate(times, 1)),
        time_s=times[-1],
        energy_j=25.0 * times[-1],
        interruptions=(Interruption(left + lost_s / 2, 3),),
        **changes,
    )


def test_an_interruption_is_charged_to_neither_side():
    usual = [run(n, arm, 4, per_epoch=25.0) for n, arm in enumerate([32] * 4 + [16] * 4, 1)]
    trials = [*usual, interrupted(9, 16), interrupted(10)]
    assert set(saved(trials).values()) <= {-1, 0, 1}
    lost = interrupted(11, 64, status=TrialStatus.MISSED)
    assert saved([*trials, lost])["11-1"] == -100


def test_only_the_newest_runs_are_compared_however_many_are_read(monkeypatch):
    trials = default_then(16, 60)
    of_all = find_savings(trials)
    monkeypatch.setattr(savings, "NEWEST", 14)
    found, newest = find_savings(trials), trials[-14:]
    assert (len(of_all.by_trial), len(found.by_trial)) == (18, 14)
    assert found == find_savings(newest)
    assert find_net_amounts(trials, of_all).energy_runs == 14


def test_energy_by_the_counter_is_not_compared_with_an_estimate():
    """At ``eta_knob`` 0 the source of the energy does not matter to the cost."""
    trials = default_then(16, 60, eta_knob=0.0)
    mixed = [*(replace(each, energy_source=ESTIMATED) for each in trials[:6]), *trials[6:]]
    found = find_savings(mixed)
    assert found.share.value == pytest.approx(0.4, abs=0.03)
    assert find_net_amounts(mixed, found).energy_j is None
    assert find_net_amounts(trials, find_savings(trials)).energy_j.is_shown


ALIKE = [run(n) for n in range(1, 7)] + [run(n, 16, stage=Stage.EXPLOIT) for n in range(7, 17)]


def test_a_smoke_test_stopped_within_its_first_epoch_shows_no_speed():
    smoke = {"status": TrialStatus.STOPPED, "steps": 3, "energy_j": 0.1, "time_s": 0.1}
    tests = [
        replace(run(n, 16, 1, stage=Stage.FORCED, **smoke), epochs=None) for n in range(17, 21)
    ]
    assert find_savings([*ALIKE, *tests]).share == find_savings(ALIKE).share


def test_a_smoke_test_as_the_only_run_of_the_default_shows_nothing():
    later = [run(n, 16, stage=Stage.EXPLOIT) for n in range(2, 12)]
    assert not find_savings([run(1, epochs=1), *later]).share.is_shown
    assert find_savings([run(1, epochs=200), *later]).share.is_shown


@pytest.mark.parametrize(
    ("others", "variance"),
    [((10.0, 30.0, 400.0), 0.0), ((10.0, 50.0, 400.0), 5.0), ((10.0,), 0.0), ((2.0, 400.0), 5.0)],
)
def test_one_run_is_doubted_by_the_nearest_of_the_others(others, variance):
    found = _doubt_of_one(np.log(10.0), np.log(others))
    assert found == pytest.approx(np.log(variance) ** 2 if variance else 0.0)


def test_a_machine_that_has_become_slower_since_is_no_loss():
    slow = [run(n, 16, per_epoch=2.0, stage=Stage.EXPLOIT) for n in range(17, 23)]
    assert not find_savings([*ALIKE, *slow]).share.is_shown


def test_a_batch_size_that_only_shared_machines_ran_is_not_compared():
    shared = [replace(each, shared=True) for each in ALIKE[:6]]
    assert find_savings([*shared, *ALIKE[6:]]).share is None


def test_a_split_into_micro_batches_that_was_removed_does_not_count():
    split = [run(n, per_epoch=2.0, micro_batch_size=16) for n in range(1, 4)]
    assert not find_savings([*split, *ALIKE[3:]]).share.is_shown


def test_energy_is_that_of_the_limits_that_were_held():
    probed = (PowerPoint(100.0, 1.0, 10.0), PowerPoint(250.0, 2.0, 250.0))
    trials = [replace(each, eta_knob=0.5, steps=1000, power_limit_w=250.0) for each in ALIKE]
    first = replace(trials[0], power_profile=probed)
    without = find_net_amounts(trials, find_savings(trials))
    assert find_net_amounts([first, *trials[1:]], find_savings(trials)) == without


def test_a_run_of_the_default_that_zeusrun_stopped_was_paid_for():
    stopped = run(19, 32, 90, status=TrialStatus.STOPPED)
    trials = default_then(16, 60)
    found = saved([*trials, stopped, run(19, 16, 60, attempt=2, stage=Stage.EXPLOIT)])
    assert found["19-2"] == found["18-1"] - 90
    alone = find_savings([*trials, stopped, run(19, attempt=2)])
    assert alone.shown_share("job-19-2").value == pytest.approx(-0.9, rel=0.03)


@pytest.mark.parametrize("other", [{"fingerprint": {"script": "b"}}, {"learning_rate": 0.9}])
def test_failures_of_another_training_are_not_charged(other):
    usual = {"fingerprint": {"script": "a"}, "learning_rate": 0.1}
    trials = [replace(each, **usual) for each in default_then(16, 60)]
    failed = [
        replace(run(n, 16, 1000, status=TrialStatus.MISSED), **{**usual, **other})
        for n in range(19, 22)
    ]
    back = [replace(run(n, 16, 60, stage=Stage.EXPLOIT), **usual) for n in range(22, 25)]
    found = find_savings([*trials, *failed, *back])
    assert not any(f"job-{n}-1" in found.by_trial for n in range(19, 22))
    assert found.net.low > 0


def test_a_batch_size_that_is_new_leaves_what_the_others_saved():
    trials = default_then(16, 60, runs=50)
    before = find_savings(trials).net
    after = find_savings([*trials, run(57, 8, 70)]).net
    assert after.low > 0.9 * before.low


def test_where_only_losses_are_known_they_are_told():
    control = [run(n, stage=Stage.CONTROL) for n in (1, 2)]
    found = find_savings([*control, run(3, 64, 1000, status=TrialStatus.MISSED)])
    assert (found.in_use, found.share, found.net.value) == (None, None, -1000)


@pytest.mark.parametrize(
    "damage",
    [
        {"default_batch_size": 0},
        {"default_batch_size": -3},
        {"global_batch_size": 0},
        {"global_batch_size": -8},
        {"eta_knob": 7.0},
        {"epochs": 10**300, "energy_j": 1e29, "cost_j": 1e29},
        {"energy_j": 1e-300, "cost_j": 1e-300},
        {"learning_rate": float("nan")},
        {"max_epochs": 0},
        {"target": float("inf")},
    ],
    ids=str,
)
@pytest.mark.parametrize("at", [0, -1])
def test_damaged_records_break_nothing(damage, at):
    trials = default_then(16, 60)
    trials[at] = replace(trials[at], **damage)
    found = find_savings(trials)
    find_net_amounts(trials, found)
    assert all(np.isfinite(each.value) for each in found.by_trial.values())


def test_what_a_loss_takes_to_be_made_good():
    tried = run(7, 64, 300, status=TrialStatus.STOPPED)
    lost = [*default_then(16, 60, runs=0), tried, run(7, attempt=2, stage=Stage.RETRY)]
    trials = [*lost, *(run(n, 16, 60, stage=Stage.EXPLOIT) for n in range(8, 13))]
    found = find_savings(trials)
    assert found.net.value == pytest.approx(-100, abs=15)
    assert found.pays_back_in == pytest.approx(3, abs=1)


def test_doubts_of_jobs_add_up_as_squares():
    assert add_estimates([]) is None
    assert add_estimates([None, Estimate(1, 0, 2)]) == Estimate(1, 0, 2)
    assert add_estimates([Estimate(10, 7, 14), Estimate(5, 1, 8)]) == Estimate(15, 10, 20)


def test_the_ends_of_an_estimate_have_names():
    assert name_ends("saved_j", Estimate(2, 1, 3)) == {
        "saved_j": 2,
        "saved_low_j": 1,
        "saved_high_j": 3,
    }
    assert set(name_ends("share", None)) == {"share", "share_low", "share_high"}


RESIZED = (WorldChange(0.0, 0, 2), WorldChange(1.0, 0, 4))


def test_a_recurrence_whose_ranks_changed_is_not_compared_and_changes_no_other():
    trials = default_then(16, 60)
    usual = find_savings(trials)
    grown = run(19, 16, 60, per_epoch=0.2, stage=Stage.EXPLOIT, world_sizes=RESIZED)
    later = replace(trials[-1], trial="job-20-1", recurrence=20)
    found = find_savings([*trials, grown, later])
    assert "job-19-1" not in found.by_trial
    value = usual.by_trial["job-18-1"].value
    assert found.by_trial["job-20-1"].value == pytest.approx(value, rel=1e-3)
    # Nor is one of which only a failed attempt had other ranks.
    failed = replace(grown, recurrence=21, trial="job-21-1", status=TrialStatus.STOPPED)
    again = run(21, 32, attempt=2, stage=Stage.RETRY)
    assert "job-21-2" not in find_savings([*trials, failed, again]).by_trial
    after_target = replace(grown, world_sizes=(RESIZED[0], WorldChange(61.0, 60, 4)))
    assert "job-19-1" in find_savings([*trials, after_target]).by_trial


def test_where_the_ranks_changed_in_every_run_nothing_is_claimed():
    grown = [replace(each, world_sizes=RESIZED) for each in default_then(16, 60)]
    assert find_savings(grown).note.startswith("no cost is known yet; it is once a run")
    of_default = [*grown[:6], *default_then(16, 60)[6:]]
    found = find_savings(of_default)
    assert (found.by_trial, found.share) == ({}, None)
    assert found.note == "batch size 32, the default, has never shown what it costs"


def test_a_recurrence_without_a_model_is_a_loss_though_others_follow():
    failed = run(19, 64, 30, status=TrialStatus.MISSED)
    later = run(20, 16, 60, stage=Stage.EXPLOIT)
    assert saved([*default_then(16, 60), failed, later])["19-1"] == -30


def test_the_default_in_a_recurrence_without_a_model_is_no_loss_and_another_batch_size_is():
    failed = [
        run(19, 64, 30, status=TrialStatus.MISSED),
        run(19, 32, 40, attempt=2, status=TrialStatus.MISSED, stage=Stage.RETRY),
    ]
    assert saved([*default_then(16, 60), *failed])["19-2"] == -30


def test_a_crash_of_a_proven_batch_size_is_no_loss():
    trials = default_then(16, 60)
    for status in (TrialStatus.FAILED, TrialStatus.CANCELLED, TrialStatus.LOST):
        crashed = run(19, 16, 30, status=status, cause="disk full", stage=Stage.EXPLOIT)
        assert saved([*trials, crashed])["19-1"] == 0
        first = replace(crashed, global_batch_size=64)
        assert saved([*trials, first])["19-1"] == -30


def test_a_run_cancelled_within_seconds_moves_no_claim_on_a_cpu():
    trials = default_then(16, 60, defaults=1)
    slow = run(14, epochs=2, per_epoch=3.0, time_s=2.0, status=TrialStatus.CANCELLED)
    slow = replace(slow, curve=(CurvePoint(1, 1.0, 3.0, 0.1), CurvePoint(2, 2.0, 6.0, 0.2)))
    now = find_savings([*trials, replace(slow, gpu_model=None, gpu_count=0)])
    assert now.share.value == pytest.approx(find_savings(trials).share.value, abs=0.01)


def test_what_was_saved_so_far_ends_with_the_sum():
    found = find_savings(default_then(16, 60))
    assert len(found.so_far) == len(found.by_trial)
    assert found.so_far[-1] == pytest.approx(found.net.value)
    assert found.so_far[5] == pytest.approx(0)


def test_a_speed_check_of_a_proven_batch_size_is_charged():
    look = run(19, 16, 5, status=TrialStatus.CANCELLED, stage=Stage.SPEED_CHECK)
    assert saved([*default_then(16, 60), look])["19-1"] == -5


def test_a_forgotten_success_proves_no_batch_size():
    trials = [*default_then(16, 60), run(19, 64, 60, stage=Stage.EXPLORE, forgotten=True)]
    crashed = run(20, 64, 30, status=TrialStatus.FAILED, cause="a crash", stage=Stage.EXPLORE)
    assert saved([*trials, crashed])["20-1"] == -30


def test_misses_by_bad_luck_are_no_loss_where_the_default_would_have_had_as_many():
    """A recurrence in five misses once, with the default as with 64: that was a loss of 401 J."""
    trials = []
    for n in range(1, 21):
        arm, stage = (32, Stage.EXPLORE) if n <= 10 else (64, Stage.EXPLOIT)
        usual = {"arm": arm, "max_epochs": 200}
        if missed := n % 5 == 3:
            trials.append(run(n, epochs=200, status=FAILED[0], stage=stage, **usual))
        stage = Stage.RETRY if missed else stage
        trials.append(run(n, epochs=100 + n % 3, attempt=1 + missed, stage=stage, **usual))
    found = find_savings(trials)
    assert found.default_j == pytest.approx(101 + 0.2 / 0.8 * 200, rel=0.1)
    assert found.net.low < 0 < found.net.high
    assert abs(found.net.value) < 50
    assert found.share.value == pytest.approx(0, abs=0.01)


def test_what_a_failed_try_cost_before_the_default_ran_again_is_known():
    failed = run(2, 64, 43, status=TrialStatus.STOPPED, stage=Stage.EXPLORE)
    again = run(2, attempt=2, stage=Stage.RETRY)
    found = find_savings([run(1), failed, again])
    assert (found.net.low, found.net.value, found.net.high) == pytest.approx((-43, -43, -43))
    assert found.so_far[-1] == pytest.approx(-43)


def test_a_speed_check_before_the_default_saves_nothing_though_the_default_misses_now_and_then():
    trials = []
    for n in range(1, 26):
        first = run(n, 64, 3, status=TrialStatus.CANCELLED, stage=Stage.SPEED_CHECK)
        missed = run(n, epochs=200, status=TrialStatus.MISSED)
        made = [*([first] if n > 15 else ()), *([missed] if n % 5 == 3 else ())]
        made = [replace(each, attempt=i, trial=f"job-{n}-{i}") for i, each in enumerate(made, 1)]
        trials += [*made, run(n, attempt=len(made) + 1)]
    net = find_savings(trials).net
    assert (net.low, net.value, net.high) == pytest.approx((-30, -30, -30))


@pytest.mark.parametrize("status", FAILED)
def test_what_others_disturbed_is_not_charged(status):
    before = [run(n) for n in range(1, 6)]
    tried = run(6, 16, status=status, shared=True)
    assert "6-1" not in saved([*before, tried])
    assert "6-2" not in saved([*before, tried, run(6, attempt=2)])
    assert saved([*before, replace(tried, shared=False)])["6-1"] == -100
