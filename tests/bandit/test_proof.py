"""What a run proves of learning and speed, and what it would have cost without interruptions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.bandit.scripts import MISSED, OOM, REACHED, STOPPED, change, problem, trial
from zeusrun.bandit.auto.policy import Auto
from zeusrun.bandit.differences import describe_kept
from zeusrun.bandit.proof import Doubt, as_undisturbed, prove
from zeusrun.bandit.reinterpret import read_history, read_trial
from zeusrun.trial import BY_RANKS, CurvePoint, Interruption, PowerPoint, Stage, TrialStatus
from zeusrun.trial.values import WorkersChange, WorldChange

NOW = problem(max_power_w=50.0)


def ran(*points, cuts=(), status=REACHED, arm=64, **changes):
    """A run that reported ``(epoch, seconds)``, 10 W all along, and was interrupted at ``cuts``.

    It reaches the target in its last epoch.
    """
    best = 0.96 if status is REACHED else 0.6
    curve = tuple(
        CurvePoint(epoch, time_s, 10.0 * time_s, best if n == len(points) else 0.5)
        for n, (epoch, time_s) in enumerate(points, 1)
    )
    epoch, time_s = points[-1] if points else (None, changes.pop("time_s", 10.0))
    values = {"time_s": time_s, "cost_j": 10.0 * time_s, "epochs": epoch, "curve": curve}
    cuts = tuple(Interruption(*cut) for cut in cuts)
    energy_j = 10.0 * time_s
    return trial(arm, status, energy_j, **{**values, "interruptions": cuts, **changes})


def took(run):
    """Return seconds, joules and cost of a run as if it had not been interrupted."""
    whole = as_undisturbed(run)
    return whole.time_s, whole.energy_j, whole.cost_j


ORDINARY = ran((1, 2.0), (2, 4.0), (3, 6.0))
RESUMED = ran((1, 2.0), (2, 4.0), (3, 96.0), (4, 98.0), cuts=[(90.0, 2)])
ANEW = ran((1, 102.0), (2, 104.0), (3, 106.0), cuts=[(100.0, 4)])
IN_ALL = ran((1, 52.0), (2, 104.0), cuts=[(50.0, 0), (100.0, 1)])

# Trials of these tests begin with 2 ranks.
GROWN = ran(
    *((1, 2.0), (2, 4.0), (3, 5.0), (4, 6.0)),
    world_sizes=(WorldChange(0.0, 0, 2), WorldChange(4.1, 2, 4)),
)
GROWN_AT_ONCE = dataclasses.replace(
    GROWN, world_sizes=(WorldChange(0.0, 0, 2), WorldChange(0.5, 0, 4))
)


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({"forgotten": True}, Doubt.FORGOTTEN),
        ({"observed_batch_size": 32}, Doubt.OTHER_SIZE),
        ({"status": TrialStatus.LOST}, Doubt.NO_OUTCOME),
        ({"status": TrialStatus.FAILED}, Doubt.NO_CRASH),
        ({"status": STOPPED, "curve": (), "time_s": None, "epochs": None}, Doubt.NO_STEP),
        ({"status": STOPPED, "curve": (CurvePoint(0, 5.0, 50.0, 0.1),)}, Doubt.NO_STEP),
    ],
)
def test_of_some_runs_nothing_counts(changes, doubt):
    proof = prove(dataclasses.replace(ORDINARY, **changes))
    assert (proof, proof.nothing) == ((doubt, doubt), True)


def test_a_run_that_went_on_from_another_ones_checkpoint_teaches_nothing_but_its_crash():
    run = ran((5, 2.0), (6, 4.0), continued=True)
    assert prove(run) == (Doubt.CONTINUED, Doubt.CONTINUED)
    (told,) = describe_kept(NOW, [run])
    assert "went on from a checkpoint of another run: left out" in told
    assert not prove(dataclasses.replace(run, status=OOM)).nothing


@pytest.mark.parametrize(
    ("run", "learning", "speed"),
    [
        (ORDINARY, None, None),
        (dataclasses.replace(ORDINARY, fingerprint={"script": "a+b"}), Doubt.CHANGED, None),
        (dataclasses.replace(ORDINARY, epochs=0), Doubt.NO_EPOCH, None),
        (dataclasses.replace(ORDINARY, shared=True), None, Doubt.SHARED),
        (dataclasses.replace(ANEW, shared=True), Doubt.RESTARTED, Doubt.SHARED),
        (dataclasses.replace(ORDINARY, status=TrialStatus.FAILED, cause="x"), None, None),
        (RESUMED, None, None),
        (ANEW, Doubt.RESTARTED, None),
        (dataclasses.replace(ANEW, unclear=True), Doubt.UNCLEAR, None),
        (IN_ALL, None, Doubt.INTERRUPTED),
        (GROWN, None, None),
        (GROWN_AT_ONCE, None, Doubt.RESIZED),
        (dataclasses.replace(GROWN, variant=BY_RANKS), Doubt.RESIZED, None),
        (dataclasses.replace(ORDINARY, variant=BY_RANKS), None, None),
        (dataclasses.replace(GROWN_AT_ONCE, shared=True), None, Doubt.SHARED),
        (dataclasses.replace(GROWN_AT_ONCE, time_s=0.4), None, None),  # after its target
        # Before the first report, nothing that counts is lost.
        (ran((1, 12.0), (2, 14.0), cuts=[(10.0, 0)]), None, None),
        # Preempted right after a report.
        (ran((1, 2.0), (2, 4.0), (3, 6.0), cuts=[(4.0, 2)]), None, None),
        # The evaluation before training stays, and is no report of the earlier way.
        (ran((0, 0.0), (1, 102.0), (2, 104.0), cuts=[(100.0, 4)]), Doubt.RESTARTED, None),
        (ran((0, 0.0), (1, 2.0), (2, 94.0), (3, 96.0), cuts=[(90.0, 1)]), None, None),
    ],
)
def test_learning_and_speed_are_doubted_apart(run, learning, speed):
    assert prove(run) == (learning, speed)
    assert not prove(run).nothing


def test_a_job_may_learn_the_speed_of_shared_devices():
    shared = dataclasses.replace(ORDINARY, shared=True)
    assert prove(shared, learn_from_shared=True) == (None, None)


def test_the_speed_of_an_interrupted_run_is_that_of_its_stretches_without_interruption():
    assert took(ORDINARY) == (6.0, 60.0, 60.0)
    assert took(RESUMED) == pytest.approx((8.0, 80.0, 80.0))
    assert took(ANEW) == pytest.approx((6.0, 60.0, 60.0))
    assert took(IN_ALL) == (None, None, None)
    from_zero = ran((0, 2.0), (1, 4.0), (2, 96.0), cuts=[(90.0, 2)], epochs=3)
    assert took(from_zero)[0] == pytest.approx(6.0)
    every_five = ran((5, 10.0), (10, 90.0), (15, 100.0), cuts=[(50.0, 5)])
    assert took(every_five)[0] == pytest.approx(30.0)
    unknown = [point._replace(energy_j=None) for point in RESUMED.curve]
    assert took(dataclasses.replace(RESUMED, curve=tuple(unknown))) == (
        pytest.approx(8.0),
        None,
        None,
    )


def test_an_interruption_right_after_a_report_disturbs_only_what_follows():
    cut = ran((1, 2.0), (2, 6.0), (3, 96.0), cuts=[(6.0, 2)])
    assert took(cut)[0] == pytest.approx(3 * 6.0 / 2)


def test_the_report_that_reached_the_target_counts_though_the_last_digits_of_its_time_differ():
    cut = ran((1, 2.0), (2, 4.0), (3, 96.0), (4, 101.0), cuts=[(90.0, 2)])
    rounded = dataclasses.replace(cut, time_s=cut.time_s - 1e-9)
    assert took(rounded)[0] == pytest.approx(4 * 9.0 / 3)


def within_epochs(*points, cuts, **changes):
    """A run that reported ``(samples, seconds)`` in its only epoch, as ``ran`` otherwise."""
    run = ran(*points, cuts=cuts, **changes)
    whole = (run.curve[-1]._replace(epoch=1),)
    return dataclasses.replace(run, curve=whole, epochs=1, by_samples=run.curve)


def test_a_run_that_reports_within_epochs_is_judged_by_its_samples():
    run = within_epochs((100, 2.0), (200, 4.0), (300, 96.0), (400, 98.0), cuts=[(90.0, 1)])
    assert prove(run) == (None, None)
    assert took(run) == pytest.approx((8.0, 80.0, 80.0))
    assert read_history(NOW, [run])[0].unit is not None
    (read,) = read_history(NOW, [run])[1]
    assert (read.status, read.cost_j) == (REACHED, pytest.approx(80.0))
    on = (*run.by_samples, CurvePoint(900, 900.0, 9000.0, 0.97))
    assert took(dataclasses.replace(run, by_samples=on)) == pytest.approx((8.0, 80.0, 80.0))
    nowhere = within_epochs((100, 52.0), (200, 104.0), cuts=[(50.0, 0), (100.0, 1)])
    assert prove(nowhere) == (None, Doubt.INTERRUPTED)
    # In its third epoch, all reports of the first came again.
    anew = dataclasses.replace(ANEW, by_samples=run.by_samples)
    assert prove(anew).learning is Doubt.RESTARTED


def test_what_followed_the_target_does_not_count():
    on = (*RESUMED.curve, CurvePoint(5, 100.0, 1000.0, 0.97), CurvePoint(6, 900.0, 9000.0, 0.97))
    assert took(dataclasses.replace(RESUMED, curve=on)) == pytest.approx((8.0, 80.0, 80.0))


def test_a_damaged_record_is_no_error():
    assert took(dataclasses.replace(RESUMED, eta_knob=7.0)) == pytest.approx((8.0, 80.0, 80.0))
    assert took(dataclasses.replace(RESUMED, curve=())) == (None, None, None)
    twice = (*RESUMED.curve, *RESUMED.curve[::-1])
    assert took(dataclasses.replace(RESUMED, curve=twice)) == pytest.approx((8.0, 80.0, 80.0))


def test_a_crash_costs_what_its_restarts_cost():
    crashed = dataclasses.replace(ANEW, status=OOM)
    assert took(crashed) == (106.0, 1060.0, 1060.0)


def test_a_batch_size_is_not_charged_for_what_an_interruption_lost():
    run, usual = read_trial(NOW, RESUMED), read_trial(NOW, ran((1, 2.0), (2, 4.0), (4, 8.0)))
    assert (run.status, run.epochs) == (REACHED, 4)
    assert run.cost_j == pytest.approx(usual.cost_j)
    assert run.epoch_cost_j == pytest.approx(usual.epoch_cost_j)
    assert run.power_w == pytest.approx(10.0)
    run = read_trial(NOW, IN_ALL)
    assert (run.status, run.epochs, run.cost_j, run.epoch_cost_j) == (REACHED, 2, None, None)


def test_a_run_that_began_anew_teaches_its_speed_and_no_epochs():
    run = read_trial(NOW, ANEW)
    assert (run.status, run.epochs, run.cost_j, run.pace) == (TrialStatus.CANCELLED, None, None, ())
    assert run.epoch_cost_j == pytest.approx(20)
    missed = read_trial(NOW, dataclasses.replace(ANEW, status=MISSED, max_epochs=3))
    assert (missed.status, missed.epochs) == (TrialStatus.CANCELLED, None)


def test_what_an_interrupted_run_still_proves_is_told():
    assert describe_kept(NOW, [ORDINARY, RESUMED]) == []
    assert describe_kept(NOW, [ANEW, IN_ALL]) == [
        "1 run began anew after an interruption: kept for its speed",
        "1 run had no epoch without an interruption: kept for its epochs",
    ]
    nothing = ran((1, 102.0), cuts=[(100.0, 4)])
    assert describe_kept(NOW, [nothing])[0].endswith(": left out")


def test_what_a_shared_run_proves_is_told_as_the_job_reads_it():
    anew = ran((1, 102.0), cuts=[(100.0, 4)], shared=True)
    now = dataclasses.replace(NOW, learn_from_shared=True)
    assert describe_kept(now, [anew])[0].endswith(": left out")


def test_a_bound_that_the_lost_part_reached_says_nothing_of_the_batch_size_but_for_tonight():
    stopped = dataclasses.replace(RESUMED, status=STOPPED, target=0.99)
    now = problem(max_power_w=50.0, target=0.99)
    assert read_trial(now, stopped).status is TrialStatus.CANCELLED
    for failed in (stopped, dataclasses.replace(ANEW, status=MISSED, max_epochs=3, target=0.99)):
        tonight = dataclasses.replace(now, recurrence=failed.recurrence)
        assert read_trial(tonight, failed).status is failed.status


def test_a_batch_size_that_missed_the_target_tonight_is_not_repeated_whatever_it_proves():
    past = [
        ran(*zip(epochs, times, strict=True), arm=arm, recurrence=n)
        for arm, epochs, times in ((64, (1, 4), (2.0, 8.0)), (32, (1, 6), (2.0, 12.0)))
        for n in (1, 2, 3)
    ]
    missed = ran(
        (1, 102.0), (40, 180.0), cuts=[(100.0, 4)], status=MISSED, recurrence=9, stage=Stage.EXPLOIT
    )
    now = dataclasses.replace(NOW, recurrence=9, last_attempt=True, attempts_left=1)
    decision = Auto().choose(*read_history(now, [*past, missed]), np.random.default_rng(0))
    assert decision.global_batch_size == 32


def test_steps_of_an_interrupted_run_do_not_show_the_length_of_an_epoch():
    whole = dataclasses.replace(ORDINARY, whole_steps=30)
    lost = dataclasses.replace(RESUMED, whole_steps=900)
    again = dataclasses.replace(ORDINARY, whole_steps=900, preemptions=1)
    assert read_history(NOW, [whole, lost, again])[0].samples_per_epoch == 640
    assert read_history(NOW, [lost, again])[0].samples_per_epoch is None


def test_the_next_choice_is_as_if_the_run_had_not_been_interrupted():
    def runs(arm, *found):
        return [
            dataclasses.replace(each, global_batch_size=arm, recurrence=n)
            for n, each in enumerate(found, arm)
        ]

    def choice(trials):
        known = read_history(NOW, trials)
        return Auto().choose(*known, np.random.default_rng(0))

    whole = ran((1, 2.0), (2, 4.0), (3, 6.0), (4, 8.0))
    dearer = ran((1, 3.0), (2, 6.0), (3, 9.0), (4, 12.0))
    others = [each for arm in (16, 32, 128, 256) for each in runs(arm, dearer, dearer, dearer)]
    ordinary = choice([*others, *runs(64, whole, whole, whole)])
    assert ordinary.global_batch_size == 64
    charged = [dataclasses.replace(RESUMED, interruptions=()) for _ in range(3)]
    assert choice([*others, *runs(64, *charged)]).global_batch_size != 64
    assert choice([*others, *runs(64, *[RESUMED] * 3)]) == ordinary


def sizes(*changes):
    return tuple(WorldChange(time_s, 0, ranks) for time_s, ranks in changes)


def test_the_speed_of_a_run_that_changed_its_ranks_is_that_of_epochs_with_those_of_the_trial():
    assert took(GROWN) == pytest.approx((8.0, 80.0, 80.0))
    assert took(GROWN_AT_ONCE) == (None, None, None)
    back = dataclasses.replace(GROWN, world_sizes=sizes((0.0, 2), (2.5, 4), (3.5, 2)))
    assert took(back)[0] == pytest.approx(4 * 4.0 / 3)  # all but the second epoch
    from_the_start = dataclasses.replace(GROWN, world_sizes=sizes((0.0, 4), (4.0, 2)))
    assert took(from_the_start)[0] == pytest.approx(4.0)
    cut = dataclasses.replace(GROWN, interruptions=(Interruption(1.0, 0),))
    assert took(cut)[0] == pytest.approx(8.0)
    grown = sizes((0.0, 2), (4.0, 4))
    within = within_epochs((100, 2.0), (200, 4.0), (300, 5.0), cuts=[], world_sizes=grown)
    assert took(within)[0] == pytest.approx(6.0)


def workers(*changes):
    """Return numbers of loader workers from moments on; a step takes 1/n s with n of them."""
    return tuple(WorkersChange(time_s, n, False, 1 / n) for time_s, n in changes)


def test_the_speed_of_a_run_that_tried_loader_workers_is_that_of_epochs_with_the_fastest():
    tuned = dataclasses.replace(GROWN, world_sizes=(), workers=workers((0.0, 2), (4.0, 4)))
    assert took(tuned) == pytest.approx((4.0, 40.0, 40.0))  # the last two epochs
    assert prove(tuned) == (None, None)
    one = dataclasses.replace(tuned, workers=workers((0.0, 4)))
    assert took(one)[0] == 6.0
    late = dataclasses.replace(tuned, workers=workers((0.0, 2), (7.0, 4)))
    assert took(late) == (None, None, None)  # after the target: no epoch had the fastest
    assert prove(late).speed is Doubt.TUNED
    back = dataclasses.replace(tuned, workers=workers((0.0, 4), (2.0, 2), (4.0, 4)))
    assert took(back)[0] == pytest.approx(4 * 4.0 / 3)  # all but the second epoch


def test_the_speed_of_a_run_that_has_settled_is_that_of_the_number_at_which_it_has():
    one, two, four = workers((0.0, 1), (2.0, 2), (4.0, 4))
    slow = one._replace(time_s=5.0, settled="1 of 4", step_s=0.26)
    tuned = dataclasses.replace(GROWN, world_sizes=(), workers=(one, two, four, slow))
    assert took(tuned)[0] == pytest.approx(4 * 3.0 / 2)  # of the first epoch and of the last one


def test_loader_workers_may_change_a_moment_after_an_epoch():
    late = dataclasses.replace(GROWN, world_sizes=(), workers=workers((0.0, 2), (4.04, 4)))
    assert took(late)[0] == pytest.approx(4.0)


def test_the_speed_of_a_run_after_a_worker_has_died_is_unknown():
    died, own = workers((0.0, 8), (0.5, 1))
    changes = died._replace(step_s=None, died=True), own._replace(step_s=None)
    assert prove(dataclasses.replace(GROWN, world_sizes=(), workers=changes)).speed is Doubt.TUNED


def test_speeds_with_loader_workers_from_elsewhere_are_not_compared():
    tuned = dataclasses.replace(ORDINARY, speed_variant="tune")
    run = read_trial(NOW, tuned)
    assert (run.status, run.epochs, run.epoch_cost_j) == (REACHED, 3, None)
    assert read_trial(dataclasses.replace(NOW, speed_variant="tune"), tuned).epoch_cost_j == 20.0
    assert describe_kept(NOW, [tuned])[0].startswith("1 run had another loader.workers")


def test_a_batch_size_is_compared_at_its_own_best_number_of_loader_workers():
    now = dataclasses.replace(NOW, speed_variant="tune", recurrence=9)

    def tuned(recurrence, number, *, settled=None, **changes):
        row = WorkersChange(0.0, number, False, 1 / number if number else None, settled=settled)
        own = {"recurrence": recurrence, "trial": f"t{recurrence}", "speed_variant": "tune"}
        return dataclasses.replace(ORDINARY, workers=(row,), **{**own, **changes})

    def timed(*trials):
        _, runs = read_history(now, trials)
        assert all(run.epochs == 3 for run in runs)
        return [run.recurrence for run in runs if run.epoch_cost_j is not None]

    assert timed(tuned(1, 2), tuned(2, 4)) == [2]
    assert timed(tuned(1, 4, settled="1 of 4"), tuned(2, 2)) == [1]
    assert timed(tuned(1, 4), tuned(2, 4, settled="1 of 4")) == [1, 2]
    assert timed(tuned(1, 2), tuned(2, 4, host="elsewhere")) == [1, 2]
    assert timed(tuned(1, 2), tuned(2, 4, shared=True)) == [1]
    now = dataclasses.replace(now, learn_from_shared=True)
    assert timed(tuned(1, 2, shared=True), tuned(2, 4, shared=True)) == [2]
    assert timed(tuned(1, 2), tuned(2, 0)) == [1, 2]


def test_a_run_that_changed_its_ranks_teaches_epochs_and_leaves_the_belief_of_speed():
    steady = [
        ran(*((n, 2.0 * n) for n in range(1, epochs + 1)), recurrence=epochs, trial=f"t{epochs}")
        for epochs in (3, 4, 5)
    ]

    def belief(*more):
        now, runs = read_history(dataclasses.replace(NOW, recurrence=9), [*steady, *more])
        arms = Auto().explain(now, runs, np.random.default_rng(0))
        return next(each for each in arms if each.global_batch_size == 64)

    usual = belief()
    for grown in (GROWN, GROWN_AT_ONCE):
        long = dataclasses.replace(grown, recurrence=6, trial="t6")
        found = belief(long)
        assert found.epoch_cost_j == pytest.approx(usual.epoch_cost_j, rel=1e-4)
        assert found.reached == usual.reached + 1
        assert belief(dataclasses.replace(long, world_sizes=())).epoch_cost_j < 20.0
    many = (GROWN_AT_ONCE.curve[-1]._replace(epoch=12),)
    assert belief(dataclasses.replace(long, curve=many, epochs=12)).epochs > usual.epochs


def test_nothing_of_other_ranks_is_charged_to_a_batch_size():
    run = read_trial(NOW, GROWN_AT_ONCE)
    assert (run.status, run.epochs, run.cost_j, run.epoch_cost_j) == (REACHED, 4, None, None)
    profiled = dataclasses.replace(GROWN, power_profile=(PowerPoint(100.0, 5.0, 90.0),))
    assert read_trial(NOW, profiled).profile == ()
    stopped = dataclasses.replace(GROWN_AT_ONCE, status=STOPPED, curve=(), epochs=None)
    run = read_trial(NOW, stopped)
    assert (run.status, run.epoch_cost_j) == (TrialStatus.CANCELLED, None)


def test_the_epochs_with_other_ranks_count_for_a_job_with_so_many():
    of_four = change(NOW, world_size=4)
    assert describe_kept(NOW, [GROWN]) == describe_kept(of_four, [GROWN]) == []
    costs_j = [read_trial(now, GROWN).epoch_cost_j for now in (NOW, of_four)]
    assert costs_j == pytest.approx([20.0, 10.0])  # its last epoch alone had four ranks throughout
    assert read_trial(of_four, ORDINARY).epoch_cost_j is None
    # It was preempted before it grew; the first entry is of its second part.
    resumed = dataclasses.replace(GROWN, world_sizes=sizes((2.0, 2), (4.1, 4)))
    assert read_trial(of_four, resumed).epoch_cost_j == pytest.approx(10.0)
    late = dataclasses.replace(GROWN, world_sizes=sizes((0.0, 2), (7.0, 4)))
    assert read_trial(of_four, late).epoch_cost_j is None  # after its target
    scaled = dataclasses.replace(GROWN, variant=BY_RANKS)
    assert read_trial(of_four, scaled) is None  # four ranks had another batch size


def test_a_crash_with_other_ranks_says_nothing_of_the_batch_size():
    crashed = dataclasses.replace(GROWN, status=OOM)
    assert prove(crashed).nothing
    assert read_trial(NOW, crashed) is None
    back = dataclasses.replace(crashed, world_sizes=(*GROWN.world_sizes, WorldChange(5.0, 3, 2)))
    assert read_trial(NOW, back).status is OOM


def test_what_a_run_that_changed_its_ranks_still_proves_is_told():
    assert describe_kept(NOW, [GROWN]) == []
    assert describe_kept(NOW, [GROWN_AT_ONCE, dataclasses.replace(GROWN, status=OOM)]) == [
        "1 run changed the number of ranks: kept for its epochs",
        "1 run changed the number of ranks: left out",
    ]
