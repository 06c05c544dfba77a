"""What a trial says today, after the job or the machine has changed."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.bandit.scripts import DISPATCHED, MISSED, OOM, REACHED, STOPPED, change, problem, trial
from zeusrun.bandit.auto.policy import Auto
from zeusrun.bandit.differences import describe_kept
from zeusrun.bandit.reinterpret import complete, in_units, read_history, read_trial
from zeusrun.trial import (
    CurvePoint,
    EnergySource,
    Hardware,
    Interruption,
    PowerPoint,
    Stage,
    TrialStatus,
)

CANCELLED = TrialStatus.CANCELLED
NOW = problem(max_power_w=50.0)


def learned(*values, status=REACHED, **changes):
    """A trial whose metric took these values, one an epoch of 2 s and 30 J."""
    curve = tuple(CurvePoint(n, 2.0 * n, 30.0 * n, value) for n, value in enumerate(values, 1))
    n = len(values)
    changes = {"time_s": 2.0 * n, "energy_j": 30.0 * n, "epochs": n, "curve": curve} | changes
    return trial(64, status, changes.pop("energy_j"), **changes)


def test_a_reached_trial_reads_as_it_ended():
    run = read_trial(NOW, learned(0.5, 0.9, 0.96))
    assert (run.arm, run.status, run.epochs, run.local) == (64, REACHED, 3, True)
    assert run.cost_j == pytest.approx(90)
    assert run.epoch_cost_j == pytest.approx(30)
    assert run.power_w == pytest.approx(15)
    assert run.pace == ((1, 0.5), (2, 0.9), (3, 0.96))


def test_of_a_trial_that_was_edited_while_it_was_preempted_only_the_speed_counts():
    edited = learned(0.5, 0.9, 0.96, fingerprint={"script": "a+b", "args": "c"})
    run = read_trial(NOW, edited)
    assert (run.status, run.epochs, run.cost_j, run.pace) == (CANCELLED, None, None, ())
    assert run.epoch_cost_j == pytest.approx(30)
    (clause,) = describe_kept(NOW, [edited])
    assert clause == "1 run changed while preempted: kept for its speed"


def test_a_preempted_and_edited_run_does_not_change_the_epochs_that_the_policy_expects():
    now = dataclasses.replace(NOW, fingerprint={"script": "b"})
    whole = [learned(*[0.5] * 9, 0.96, fingerprint={"script": "a"}) for _ in range(3)]
    edited = learned(0.5, 0.96, fingerprint={"script": "a+b"})

    def expected(*trials):
        asked = read_history(now, trials)
        beliefs = Auto().explain(*asked, np.random.default_rng(0))
        return next(each.epochs for each in beliefs if each.global_batch_size == 64)

    assert expected(*whole, edited) == expected(*whole)
    assert expected(edited) == expected()
    unedited = dataclasses.replace(edited, fingerprint={"script": "b"})
    assert expected(*whole, unedited) < expected(*whole)


def test_what_is_ignored_stays_so_in_all_attempts_of_a_recurrence():
    past = [learned(0.96, fingerprint={"args": x}, recurrence=n) for n, x in enumerate("abbc")]
    failed = learned(0.5, fingerprint={"args": "d"}, recurrence=9, status=STOPPED)
    now = problem(recurrence=9, fingerprint={"args": "d"})
    for trials in (past, [*past, failed]):
        assert {run.differs for run in read_history(now, trials)[1]} == {None}


def test_a_trial_of_another_variant_teaches_nothing():
    fixed, adaptive = learned(0.96), learned(0.5, 0.96, variant="adaptive")
    assert [run.epochs for run in read_history(NOW, [fixed, adaptive])[1]] == [1]
    adapts = dataclasses.replace(NOW, variant="adaptive")
    assert [run.epochs for run in read_history(adapts, [fixed, adaptive])[1]] == [2]


def test_what_did_not_fit_in_memory_may_fit_in_smaller_micro_batches():
    crashed = trial(64, OOM)
    assert read_trial(NOW, crashed).status is OOM
    split = dataclasses.replace(NOW, micro_batch_sizes={64: 16})
    assert read_trial(split, crashed) is None
    assert read_trial(split, dataclasses.replace(crashed, micro_batch_size=16)).status is OOM
    (clause,) = describe_kept(split, [crashed])
    assert clause == "1 run had other micro-batches: left out"


def test_a_trial_with_other_micro_batches_tells_epochs_and_no_speed():
    run = read_trial(NOW, learned(0.5, 0.96, micro_batch_size=16))
    assert (run.status, run.epochs, run.cost_j, run.epoch_cost_j) == (REACHED, 2, None, None)


def test_an_easier_target_was_reached_earlier():
    run = read_trial(problem(target=0.9), learned(0.5, 0.9, 0.96))
    assert (run.status, run.epochs, run.cost_j) == (REACHED, 2, pytest.approx(60))


def test_a_miss_may_have_reached_an_easier_target():
    run = read_trial(problem(target=0.9), learned(0.5, 0.91, 0.8, status=MISSED, max_epochs=3))
    assert (run.status, run.epochs) == (REACHED, 2)


def test_a_harder_target_cuts_a_trial_short():
    run = read_trial(problem(target=0.99), learned(0.5, 0.9, 0.96))
    assert (run.status, run.epochs, run.cost_j) == (CANCELLED, 3, None)
    assert run.epoch_cost_j == pytest.approx(30)


def test_a_minimised_metric_is_read_downwards():
    now = problem(mode="min", target=0.2)
    run = read_trial(now, learned(0.9, 0.5, 0.6, 0.1, mode="min", target=0.1))
    assert (run.status, run.epochs) == (REACHED, 4)
    assert run.pace == ((1, 0.9), (2, 0.5), (4, 0.1))


def test_fewer_epochs_make_a_late_success_a_miss():
    run = read_trial(problem(max_epochs=2), learned(0.5, 0.9, 0.96))
    assert (run.status, run.cost_j) == (MISSED, None)


def test_more_epochs_make_a_miss_a_run_cut_short():
    past = learned(0.5, 0.6, status=MISSED, max_epochs=2)
    assert read_trial(NOW, past).status is CANCELLED
    assert read_trial(problem(max_epochs=2), past).status is MISSED


def test_another_eta_knob_reprices_a_trial_and_doubts_a_stop():
    run = read_trial(problem(eta_knob=0.0), learned(0.96))
    assert run.cost_j == pytest.approx(50 * 2)
    stopped = learned(0.5, 0.6, status=STOPPED)
    assert read_trial(NOW, stopped).status is STOPPED
    assert read_trial(problem(eta_knob=0.0), stopped).status is CANCELLED


@pytest.mark.parametrize("target", [0.9, 0.99])
def test_a_stop_at_the_bound_of_another_target_is_no_failure_today(target):
    """A harder one costs more, and so may its runs."""
    assert read_trial(problem(target=target), learned(0.5, 0.6, status=STOPPED)).status is CANCELLED


@pytest.mark.parametrize(
    "changes", [{"gpu_model": "H100"}, {"gpu_count": 8}, {"world_size": 4}, {"gpu_model": None}]
)
def test_other_hardware_keeps_the_epochs_alone(changes):
    run = read_trial(change(NOW, **changes), learned(0.5, 0.96))
    assert (run.status, run.epochs, run.local) == (REACHED, 2, False)
    assert (run.cost_j, run.epoch_cost_j, run.power_w) == (None, None, None)
    assert run.elsewhere == (Hardware(2, "V100", 2), 50.0, pytest.approx(30))


def test_only_an_undisturbed_run_with_the_same_kind_of_energy_shows_a_speed_elsewhere():
    there = change(NOW, gpu_model="H100")
    interruption = Interruption(1.0, 0)
    for changes in (
        {"shared": True},
        {"energy_source": EnergySource.ESTIMATED},
        {"interruptions": (interruption,)},
    ):
        assert read_trial(there, learned(0.5, 0.96, **changes)).elsewhere is None


def test_what_ran_on_todays_devices_shows_no_speed_elsewhere():
    assert read_trial(NOW, learned(0.5, 0.96)).elsewhere is None


def test_another_learning_rate_or_metric_keeps_the_speed_alone():
    for now in (problem(learning_rates={64: 0.2}), problem(metric="f1")):
        run = read_trial(now, learned(0.5, 0.96))
        assert (run.status, run.epochs, run.pace) == (CANCELLED, None, ())
        assert run.epoch_cost_j == pytest.approx(30)
        there = change(now, gpu_model="H100")
        assert read_trial(there, learned(0.5, 0.96)) is None


def test_energy_of_the_other_kind_keeps_the_epochs_alone():
    past = learned(0.96, energy_source=EnergySource.ESTIMATED)
    run = read_trial(NOW, past)
    assert (run.epochs, run.cost_j, run.epoch_cost_j, run.local) == (1, None, None, False)
    assert read_trial(problem(eta_knob=0.0), past).cost_j == pytest.approx(100)


def test_without_energy_there_is_no_cost_but_epochs():
    run = read_trial(NOW, trial(64, REACHED, None))
    assert (run.status, run.epochs, run.cost_j, run.epoch_cost_j) == (REACHED, 5, None, None)


def test_an_arm_that_is_no_candidate_now_still_speaks():
    run = read_trial(problem(candidates=(32, 64), learning_rates={}), trial(128))
    assert (run.arm, run.epochs) == (128, 5)


def test_out_of_memory_holds_on_the_same_gpus_whatever_the_target():
    past = trial(256, OOM, None, target=0.5, metric="loss", learning_rate=9.0)
    assert read_trial(NOW, past).status is OOM
    assert read_trial(problem(gpu_model="H100"), past) is None


def test_a_lost_trial_says_nothing():
    assert read_trial(NOW, trial(64, TrialStatus.LOST)) is None


def test_a_forgotten_trial_says_nothing_not_even_how_long_an_epoch_is():
    past = dataclasses.replace(learned(0.5, 0.96, whole_steps=40), forgotten=True)
    now, runs = read_history(problem(energy_measured=None), [past])
    assert (runs, now.samples_per_epoch, now.energy_measured) == ([], None, None)
    assert describe_kept(NOW, [past]) == ["1 run forgotten by 'history --forget': left out"]


def test_a_crash_is_remembered_where_it_happened():
    crash = trial(64, TrialStatus.FAILED, cause="train.py:3: ValueError")
    assert read_trial(NOW, crash).status is TrialStatus.FAILED
    assert read_trial(problem(gpu_model="H100"), crash) is None


def test_a_failure_that_was_no_crash_says_nothing():
    ended = trial(64, TrialStatus.FAILED)
    assert read_trial(NOW, ended) is None
    told = "1 run ended by a signal, or without the metric: left out"
    assert describe_kept(NOW, [ended]) == [told]


def test_a_trial_stopped_in_its_first_epoch_tells_that_an_epoch_costs_more():
    run = read_trial(NOW, trial(64, STOPPED, 70.0, epochs=None, curve=()))
    assert (run.status, run.epochs) == (STOPPED, None)
    assert run.epoch_cost_j == pytest.approx(70)


def test_fewer_epochs_charge_no_more_than_they_would_have_run():
    past = learned(*[0.5] * 5, 0.96)
    run = read_trial(problem(max_epochs=2), past)
    assert (run.status, run.epochs, run.epoch_cost_j) == (MISSED, 2, pytest.approx(30))


def test_a_trial_in_flight_says_only_that():
    run = read_trial(NOW, trial(64, DISPATCHED))
    assert (run.status, run.epochs, run.epoch_cost_j) == (DISPATCHED, None, None)


def test_a_speed_check_tells_the_speed():
    now = problem(samples_per_epoch=6400.0, eta_knob=0.5, max_power_w=50.0)
    past = trial(64, CANCELLED, 60.0, epochs=None, power_profile=(PowerPoint(None, 10.0, 30.0),))
    run = read_trial(now, past)
    assert (run.status, run.epochs) == (CANCELLED, None)
    assert run.epoch_cost_j == pytest.approx((0.5 * 30 + 0.5 * 50) / 10 * 6400 / 64)


def test_probing_power_limits_is_not_charged_to_the_arm():
    now = problem(samples_per_epoch=640.0)
    profile = (PowerPoint(100.0, 2.0, 100.0), PowerPoint(150.0, 4.0, 120.0))
    run = read_trial(now, learned(0.96, power_profile=profile))
    assert run.epoch_cost_j == pytest.approx(120 / 4 * 10)
    assert (run.power_limit_w, run.power_w) == (150.0, 120.0)


def test_loops_that_count_from_zero_are_read_right():
    curve = tuple(CurvePoint(n, 2.0 + n, 30.0, value) for n, value in enumerate((0.5, 0.9, 0.96)))
    run = read_trial(problem(target=0.9), learned(0.1, curve=curve))
    assert (run.status, run.epochs) == (REACHED, 2)


def test_a_metric_that_was_not_finite_is_passed_over():
    run = read_trial(problem(target=0.9), learned(None, 0.91, status=MISSED, max_epochs=2))
    assert (run.status, run.epochs, run.pace) == (REACHED, 2, ((2, 0.91),))


def test_a_loop_that_evaluates_every_five_epochs_from_0_reads_as_whole_epochs():
    curve = tuple(CurvePoint(n, 2.0 * n, 30.0 * n, 0.09 * n + 0.17) for n in (4, 9))
    run = read_trial(NOW, learned(curve=curve, target=0.5, max_epochs=50, epochs=10))
    assert (run.status, run.epochs) == (REACHED, 10)
    assert [epoch for epoch, _ in run.pace] == [5, 10]
    baseline = (CurvePoint(0, 0.0, 0.0, 0.1), *curve)
    run = read_trial(NOW, learned(curve=baseline, target=0.5, max_epochs=50, epochs=10))
    assert (run.status, run.epochs) == (REACHED, 10)


def test_a_model_that_meets_the_target_before_training_teaches_nothing_about_epochs():
    baseline = CurvePoint(0, 0.0, 0.0, 0.97)
    alone = learned(curve=(baseline,), epochs=0, time_s=0.0, energy_j=0.0)
    run = read_trial(NOW, alone)
    assert (run.status, run.epochs, run.cost_j, run.pace) == (CANCELLED, None, None, ())
    trained = (baseline, CurvePoint(1, 2.0, 30.0, 0.5), CurvePoint(2, 4.0, 60.0, 0.96))
    run = read_trial(NOW, learned(curve=trained, epochs=2, time_s=4.0, energy_j=60.0))
    assert (run.status, run.epochs) == (REACHED, 2)
    failed = learned(curve=(baseline._replace(time_s=0.1),), status=TrialStatus.FAILED, epochs=1)
    assert read_trial(NOW, failed) is None


def test_the_history_tells_the_length_of_an_epoch_and_the_kind_of_energy():
    past = [learned(0.5, 0.96, whole_steps=20), trial(32, energy_source=EnergySource.ESTIMATED)]
    now, runs = read_history(problem(energy_measured=None), past)
    assert now.samples_per_epoch == 640
    assert now.energy_measured is False
    assert [run.local for run in runs] == [False, True]
    stopped = learned(0.5, status=STOPPED, whole_steps=35)
    assert read_history(problem(), [stopped])[0].samples_per_epoch is None


def test_it_says_what_is_kept_and_why():
    curve = {"curve": (CurvePoint(1, 2.0, 20.0, 0.5),)}
    past = [
        trial(64),
        trial(64, target=0.9, **curve),
        trial(64, target=0.8, **curve),
        trial(64, target=0.9, **curve),
        trial(64, gpu_model="P100", gpu_count=1),
        trial(64, world_size=8),
        trial(64, learning_rate=0.3),
        trial(64, metric="loss"),
        trial(64, TrialStatus.LOST),
        trial(48, **curve),
        trial(64, eta_knob=0.5, **curve),
        trial(64, max_epochs=99, **curve),
        trial(64, DISPATCHED, target=0.1),
    ]
    assert describe_kept(problem(), past) == [
        "3 runs had another target: read again from their learning curves",
        "2 runs had other hardware: kept for their epochs",
        "1 run had another learning rate: kept for its speed",
        "1 run had another metric: kept for its speed",
        "1 run ended without an outcome: left out",
        "1 run had a batch size that is no candidate: read again from its learning curve",
        "1 run had another eta_knob: read again from its learning curve",
        "1 run had another max_epochs: read again from its learning curve",
    ]
    assert describe_kept(problem(), [trial(64), trial(256, OOM)]) == []


@pytest.mark.parametrize(("then_w", "kept_of_it"), [(20.0, None), (None, None), (60.0, "speed")])
def test_a_cpu_of_other_cores_or_watts_is_other_hardware(then_w, kept_of_it):
    cpu = {"gpu_model": None, "gpu_count": 0, "max_power_w": 20.0}
    then = trial(64, **{**cpu, "max_power_w": then_w})
    read = read_trial(problem(**cpu), then)
    assert (read.epochs, read.local) == (then.epochs, kept_of_it is None)
    told = describe_kept(problem(**cpu), [then])
    other = "1 run had other hardware: kept for its epochs"
    assert told == ([] if kept_of_it is None else [other])


def test_a_gpu_of_another_limit_is_the_same_hardware():
    assert read_trial(problem(max_power_w=300.0), trial(64, max_power_w=250.0)).local


def test_nothing_is_learned_from_a_trial_that_was_seen_to_train_with_another_batch_size():
    same, other = trial(64, observed_batch_size=64), trial(64, observed_batch_size=32)
    assert read_trial(problem(), same) == read_trial(problem(), trial(64))
    assert read_trial(problem(), other) is None
    _, told = describe_kept(problem(), [other])
    assert told == "1 run trained with another batch size: left out"


def test_a_metric_that_equals_the_target_in_float32_has_reached_it():
    run = read_trial(NOW, learned(0.5, 0.949999988, status=MISSED, max_epochs=2))
    assert (run.status, run.epochs) == (REACHED, 2)


def test_an_evaluation_before_training_is_no_epoch():
    points = [(0, 0.0, 0.0, 0.1), (1, 2.0, 30.0, 0.5), (2, 4.0, 60.0, 0.96)]
    curve = tuple(CurvePoint(*point) for point in points)
    run = read_trial(NOW, learned(0.1, curve=curve, epochs=2))
    assert (run.status, run.epochs) == (REACHED, 2)
    assert run.pace == ((1, 0.5), (2, 0.96))
    good = problem(target=0.05)  # which the untrained model reaches
    assert read_trial(good, learned(0.1, curve=curve, epochs=2)).epochs == 1


def test_a_history_of_evaluations_before_training_divides_by_nothing():
    before = (CurvePoint(0, 0.0, 0.0, 0.1),)
    whole = (*before, CurvePoint(1, 2.0, 30.0, 0.5), CurvePoint(2, 4.0, 60.0, 0.96))
    past = [
        learned(0.1, curve=whole, epochs=2, trial="a"),
        learned(0.1, curve=(*before, CurvePoint(1, 2.0, 30.0, 0.05)), status=CANCELLED, trial="b"),
        learned(0.1, curve=before, epochs=0, whole_steps=50, trial="c"),
        learned(0.1, curve=before, status=MISSED, epochs=0, whole_steps=50, trial="d"),
    ]
    for now in (NOW, problem(target=0.05)):
        known, runs = read_history(now, past)
        assert Auto().choose(known, runs, np.random.default_rng(0)).global_batch_size


def test_a_script_that_trains_past_max_epochs_has_reached_what_it_reached():
    own_loop = learned(0.5, 0.9, 0.96, max_epochs=2)
    assert read_trial(problem(max_epochs=2), own_loop).status is REACHED
    assert read_trial(problem(max_epochs=2), own_loop).epochs == 3
    missed = learned(0.5, 0.6, 0.7, status=MISSED, max_epochs=2)
    assert read_trial(problem(max_epochs=2), missed).status is MISSED


def test_a_trial_that_was_stopped_before_its_first_step_says_nothing():
    late = trial(64, STOPPED, None, time_s=None, epochs=None, cost_j=None)
    assert read_trial(NOW, late) is None
    evaluated = learned(0.1, curve=(CurvePoint(0, 8.0, 80.0, 0.1),), status=STOPPED, epochs=1)
    assert read_trial(NOW, evaluated) is None
    (told,) = describe_kept(NOW, [late])
    assert told == "1 run was stopped before the first step: left out"


@pytest.mark.parametrize("status", [TrialStatus.CANCELLED, TrialStatus.PREEMPTED])
@pytest.mark.parametrize(
    "changes", [{"target": 0.9}, {"metric": "loss"}, {"world_size": 8}], ids=str
)
def test_a_trial_that_ended_before_its_first_epoch_is_not_spoken_of(status, changes):
    assert describe_kept(problem(), [trial(64, status, **{"epochs": None, **changes})]) == []


def test_a_trial_without_a_curve_is_not_read_again_from_it():
    assert (
        describe_kept(problem(), [trial(64, MISSED, target=0.9), trial(64, MISSED, max_epochs=9)])
        == []
    )


def test_where_time_is_all_that_counts_a_run_without_energy_has_a_cost_and_others_are_tried():
    past = trial(64, energy_j=None, eta_knob=0.0, cost_j=500.0, curve=())
    now, runs = read_history(problem(eta_knob=0.0, max_power_w=50.0), [past])
    assert runs[0].cost_j == 50.0 * 10.0
    assert Auto().choose(now, runs, np.random.default_rng(0)).stage is Stage.EXPLORE


def by_samples(*points, **changes):
    """A run that has reported within its first epoch, at some samples."""
    last, size = points[-1], changes.pop("size", 64)
    base = learned(last[1], time_s=last[0] / 100, energy_j=last[0] / 10, **changes)
    curve = tuple(CurvePoint(at, at / 100, at / 10, value) for at, value in points)
    return dataclasses.replace(base, global_batch_size=size, samples=last[0], by_samples=curve)


def test_trainings_that_report_within_epochs_are_compared_by_samples():
    small = [by_samples((500, 0.2), (1000, 0.96), recurrence=1)]
    large = [by_samples((2000, 0.3), (4000, 0.96), recurrence=2, size=128)]
    asked, runs = read_history(NOW, [*small, *large])
    assert asked.unit == 25
    assert [(run.status, run.epochs * asked.unit) for run in runs] == [
        (REACHED, 1000),
        (REACHED, 4000),
    ]
    assert [point for point, _ in runs[0].pace] == [20, 40]
    # Joules per unit are those of its samples.
    assert runs[0].epoch_cost_j == pytest.approx(runs[1].epoch_cost_j)


def test_a_job_has_one_unit_and_what_cannot_be_told_in_it_teaches_no_epochs():
    by_epochs = learned(0.1, 0.2, 0.96, recurrence=2)
    steps = 3 * 320 // by_epochs.global_batch_size
    shown = dataclasses.replace(by_epochs, whole_steps=steps)
    hidden = dataclasses.replace(by_epochs, recurrence=3, whole_steps=None)
    first = by_samples((500, 0.2), (1000, 0.96), recurrence=1)
    asked, runs = read_history(NOW, [first, shown, hidden])
    assert runs[1].epochs * asked.unit == pytest.approx(960, abs=asked.unit)
    assert not runs[2].epochs
    for whole, unit in ((shown, 1000), (first, 2000)):  # a first report before half a unit
        assert in_units(dataclasses.replace(asked, unit=unit), whole).curve[0].epoch == 1


def test_a_run_that_does_not_count_sets_no_unit():
    odd = by_samples((500, 0.2), (1000, 0.96), recurrence=1)
    normal = learned(0.1, 0.2, 0.96, recurrence=2)
    for changes in ({"forgotten": True}, {"metric": "other"}, {"observed_batch_size": 7}):
        asked, _ = read_history(NOW, [dataclasses.replace(odd, **changes), normal])
        assert asked.unit is None


def with_steps(size, steps, recurrence, **changes):
    """A run of three epochs with so many steps in each."""
    run = learned(0.1, 0.2, 0.96, recurrence=recurrence)
    return dataclasses.replace(run, global_batch_size=size, whole_steps=3 * steps, **changes)


def test_epochs_that_are_a_fixed_number_of_steps_are_compared_by_samples():
    """Such as the evaluations of a loop of iterations: with 128, one has seen twice the samples."""
    asked, runs = read_history(NOW, [with_steps(64, 50, 1), with_steps(128, 50, 2)])
    assert asked.unit == 50 * 64 // 20
    assert [run.epochs * asked.unit for run in runs] == [9600, 19200]
    # Not with one batch size alone, nor where the batch size did not arrive.
    for other in (with_steps(64, 50, 2), with_steps(128, 50, 2, unapplied=True)):
        assert read_history(NOW, [with_steps(64, 50, 1), other])[0].unit is None


@pytest.mark.parametrize(
    ("sizes", "samples", "known"),
    [
        ((64, 128), 3200, False),
        ((64, 96, 128), 1000, False),
        ((100, 105), 50_000, False),
        ((100, 128), 130, True),  # two steps of each
    ],
)
def test_epochs_of_the_same_data_stay_epochs(sizes, samples, known):
    whole = 3 * samples if known else None
    runs = [
        with_steps(size, -(-samples // size), n, whole_samples=whole)
        for n, size in enumerate(sizes, 1)
    ]
    assert read_history(NOW, runs)[0].unit is None


def test_auto_avoids_a_batch_size_with_which_the_script_never_evaluates():
    reached = learned(0.5, 0.9, 0.96)
    silent = trial(128, MISSED, recurrence=2, epochs=None)
    assert read_trial(NOW, silent).epochs == NOW.max_epochs
    beliefs = Auto().explain(*read_history(NOW, [reached, silent]), np.random.default_rng(0))
    (own,) = [each for each in beliefs if each.global_batch_size == 128]
    assert (own.trials, own.chance) == (1, 0.0)
    assert own.verdict.startswith("failed 1 of 1; counting that, ")
    assert own.cost_j > 2 * beliefs[0].cost_j


@pytest.mark.parametrize(
    ("values", "changes", "last_step"),
    [
        ((0.5, 0.85, 1.05), {}, (1, 0.5)),  # the target is 0.95
        ((0.5, 0.94, 0.95), {}, (1, 1.0)),
        ((0.5, 0.90, 0.80, 1.00), {}, (1, 0.5)),  # from the best so far
        ((0.5, 0.85, None, None, 1.05), {}, (3, 0.5)),  # reported every third epoch
        ((0.96,), {}, None),  # nothing is known of the time before
        ((0.5, 0.9), {"status": MISSED}, None),
    ],
)
def test_where_a_run_passed_the_target_between_its_last_two_reports(values, changes, last_step):
    run = read_trial(NOW, learned(*values, **changes))
    if last_step is None:
        assert run.last_step is None
    else:
        assert run.last_step == pytest.approx(last_step, abs=1e-4)


def test_a_falling_metric_passes_its_target_downwards():
    now = dataclasses.replace(NOW, mode="min", target=1.0)
    run = read_trial(now, learned(3.0, 1.5, 0.5, mode="min", target=1.0))
    assert run.last_step == pytest.approx((1, 0.5), abs=1e-4)
    first = learned(0.5, mode="min", target=1.0)
    before = CurvePoint(0, 0.0, 0.0, 2.0)  # evaluated before the training
    run = read_trial(now, dataclasses.replace(first, curve=(before, *first.curve)))
    assert run.last_step == pytest.approx((1, 2 / 3), abs=1e-4)


def test_the_startup_is_that_of_the_newest_runs_on_these_devices():
    trials = [learned(0.5, 0.96, startup_s=seconds) for seconds in (300.0, 40.0, 50.0, 60.0)]
    elsewhere = dataclasses.replace(trials[0], gpu_model="another", gpu_count=4)
    unknown = dataclasses.replace(trials[0], startup_s=None)
    assert complete(NOW, []).startup_s == 0.0
    assert complete(NOW, [elsewhere, *trials[1:], unknown]).startup_s == 50.0
    assert complete(NOW, [trials[0]] * 20 + trials[1:2] * 20).startup_s == 40.0
    damaged = [learned(0.5, 0.96, startup_s=seconds) for seconds in (-1.0, math.nan, math.inf)]
    assert complete(NOW, [*damaged, trials[1]]).startup_s == 40.0
