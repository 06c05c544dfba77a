"""How a trial advances: from events and the step clock to a frozen value."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import build_trial
from tests.launcher.values import GOAL, LAUNCHED, after, ended, report, started, ten_watts
from zeusrun.metrics.advance import advance
from zeusrun.metrics.progress import settle, take_step_clock, take_time
from zeusrun.metrics.spans import count_spans, take_energy
from zeusrun.sidecar.events import Asked, Built, Ended, Reported, Spawned, Started
from zeusrun.sidecar.step_clock import StepCount
from zeusrun.target import better_value, meets_target
from zeusrun.trial import MOST_POINTS, CurvePoint, epochs_of

DOWN = build_trial(metric="loss", target=1.0, mode="min", max_epochs=5)

moments = st.floats(0, 1000)
numbers = st.integers(0, 50)
values = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, 0.5])
events = st.lists(
    st.one_of(
        st.builds(Started, moments, numbers, numbers),
        st.builds(Ended, moments, numbers, numbers),
        st.builds(
            Reported,
            moments,
            numbers,
            st.dictionaries(st.sampled_from(["accuracy", "loss"]), values),
        ),
        st.builds(StepCount, st.integers(1, 100), moments, moments),
    ),
    max_size=30,
)


def follow(sequence):
    progress = LAUNCHED
    for event in sequence:
        before = progress
        if isinstance(event, StepCount):
            progress = take_step_clock(progress, event)
        else:
            progress = advance(progress, event, GOAL, ten_watts)
        yield before, event, progress


@given(events)
def test_any_events_in_any_order_are_taken_in_and_epochs_never_decrease(sequence):
    for before, event, progress in follow(sequence):
        # The step clock may show that the first report was an evaluation before training.
        restarted = progress.reported_by > before.reported_by
        assert restarted or progress.epochs >= before.epochs - isinstance(event, StepCount)
        assert progress.seen_metrics >= before.seen_metrics
        epochs = [point.epoch for point in progress.curve]
        assert epochs == sorted(set(epochs))
        assert all(point.time_s >= 0 and (point.energy_j or 0) >= 0 for point in progress.curve)
        assert progress.best_value is None or math.isfinite(progress.best_value)


@given(events)
def test_the_target_is_reached_by_the_first_value_that_meets_it_and_for_good(sequence):
    for before, event, progress in follow(sequence):
        value = event.metrics.get("accuracy") if isinstance(event, Reported) else None
        if before.reached is not None:
            assert progress.reached.value == before.reached.value
        else:
            steps = before.stepping_s
            trained = value is not None and (
                event.epoch > 0 or (steps is not None and event.t >= steps[0])
            )
            share = value is not None and not value > 1  # else it is in another unit
            assert (progress.reached is not None) == (
                trained and share and meets_target(value, GOAL.target, GOAL.mode)
            )


@pytest.mark.parametrize("source", ["stdout", "csv", "tensorboard", "transformers"])
def test_what_comes_before_the_first_step_reaches_nothing_whatever_its_source(source):
    first, later = (replace(report(t, 1, 0.9), source=source) for t in (103.0, 107.0))
    unseen = settle(after(started(101.0), first))
    assert unseen.reached is None
    stepped = take_step_clock(unseen, StepCount(1, 105.0, 105.0))
    assert settle(stepped, final=True).reached is None
    assert after(first, start=stepped).reached is None
    assert after(later, start=stepped).reached.value == 0.9
    assert after(report(103.0, 1, 0.9), start=stepped).reached is not None  # the script says so


def test_where_no_optimizer_is_seen_the_second_report_or_the_end_decides():
    first, second = (replace(report(t, t - 102, 0.9), source="stdout") for t in (103, 104))
    assert settle(after(first), final=True).reached.epoch == 1
    both = settle(after(first, second))
    assert both.reached.epoch == 1
    assert take_step_clock(both, StepCount(1, 105.0, 105.0)).reached is None  # and yet a step


def test_what_came_before_the_first_step_and_is_read_after_it_reaches_nothing():
    begun = take_step_clock(after(started(101.0), Built(102.0)), StepCount(1, 105.0, 105.0))
    late = replace(report(103.0, 1, 0.9), source="tensorboard")
    low = replace(report(107.0, 2, 0.1), source="tensorboard")
    assert settle(after(late, low, start=begun), final=True).reached is None


def test_a_continued_run_that_only_evaluates_reaches_its_target_at_its_end():
    restored = after(Built(102.0), replace(report(103.0, 3, 0.9), source="tensorboard"))
    assert settle(restored, final=True).reached is None
    assert settle(restored, resumed=True).reached is None  # it may train on
    assert settle(restored, final=True, resumed=True).reached.value == 0.9


def test_while_an_optimizer_has_made_no_step_nothing_reaches_the_target_not_even_at_the_end():
    games = [replace(report(t, t - 102, 0.9), source="tensorboard") for t in (103, 104, 105)]
    playing = after(Built(102.0), *games)
    assert settle(playing, final=True).reached is None
    assert playing.may_be_baseline
    assert (playing.time_s, playing.by_reports) == (None, False)
    elsewhere = after(Built(102.0), Spawned(102.5, 77), *games)  # a child that has no hooks
    assert settle(elsewhere).reached.epoch == 1


def test_reports_that_are_only_counted_count_from_the_first_step():
    said = [
        replace(report(103.0 + n, n, n / 100), source="tensorboard", counted=True, steps=steps)
        for n, steps in ((1, 0), (2, 0), (3, 0), (4, 8), (5, 9))
    ]
    playing = after(Built(102.0), *said[:2])
    stepped = take_step_clock(playing, StepCount(8, 106.5, 106.9))
    assert (stepped.epochs, [point.epoch for point in stepped.curve]) == (0, [0])
    progress = after(*said[2:], start=stepped)  # one more came before that step
    assert [(point.epoch, point.value) for point in progress.curve] == [
        (0, 0.03),
        (1, 0.04),
        (2, 0.05),
    ]
    assert (progress.epochs, progress.by_reports) == (2, True)
    assert not progress.has_done(1)


@pytest.mark.parametrize(
    ("goal", "value", "met"),
    [
        (GOAL, 0.5, True),
        (GOAL, 0.49, False),
        (GOAL, math.inf, False),
        (GOAL, -math.inf, False),
        (GOAL, math.nan, False),
        (DOWN, 1.0, True),
        (DOWN, 1.01, False),
        (DOWN, -math.inf, False),
        (DOWN, math.nan, False),
    ],
)
def test_a_target_is_met_from_its_own_side_and_never_by_nan(goal, value, met):
    assert meets_target(value, goal.target, goal.mode) is met


@pytest.mark.parametrize(
    ("goal", "value", "best", "better"),
    [
        (GOAL, 0.3, None, 0.3),
        (GOAL, 0.3, 0.2, 0.3),
        (GOAL, 0.1, 0.2, 0.2),
        (DOWN, 0.1, 0.2, 0.1),
        (GOAL, math.inf, 0.2, 0.2),
        (GOAL, math.nan, None, None),
    ],
)
def test_the_best_value_is_the_best_finite_one(goal, value, best, better):
    assert better_value(value, best, goal.mode) == better


def test_training_begins_with_the_first_step_a_median_step_time_before_its_end():
    alone = take_step_clock(after(started(103.0)), StepCount(1, 105.0, 105.0))
    assert (alone.training_t, alone.startup_s) == (105.0, 5.0)  # how long it took is not known yet
    stepped = take_step_clock(after(started(103.0)), StepCount(5, 105.0, 107.0))
    assert (stepped.training_t, stepped.steps, stepped.startup_s) == (104.5, 5, 4.5)
    slow = take_step_clock(stepped, StepCount(6, 105.0, 117.0))  # an evaluation lies between
    again = take_step_clock(slow, StepCount(8, 105.0, 118.0))
    assert (again.training_t, again.steps) == (104.5, 8)


def test_a_first_step_begins_with_the_script_at_the_earliest():
    stepped = take_step_clock(after(started(103.0)), StepCount(2, 105.0, 125.0))
    assert stepped.training_t == 103.0


def test_what_lines_of_single_batches_have_met_is_not_reached():
    line = replace(report(106.0, 1, 0.9), source="stdout", steps=3)
    stepped = take_step_clock(LAUNCHED, StepCount(9, 101.0, 103.0))
    lucky = after(line, start=stepped)
    assert lucky.reached is not None
    assert after(replace(line, t=107.0, each_step=True), start=lucky).reached is None


def test_no_step_yet_changes_nothing():
    assert take_step_clock(LAUNCHED, None) is LAUNCHED


def test_without_an_optimizer_training_begins_with_the_first_backward_pass():
    line = replace(report(104.0, 1, 0.9), source="stdout")
    begun = after(started(103.0), line)
    first = take_step_clock(begun, StepCount(0, 105.0, 105.0, uncounted=1))
    assert (first.training_t, first.steps, first.startup_s) == (105.0, None, 5.0)
    passes = take_step_clock(first, StepCount(0, 105.0, 107.0, uncounted=5))
    assert (passes.training_t, passes.steps, passes.active_t) == (104.5, None, 107.0)
    assert passes.reached is None  # an untrained model has met the target
    assert after(replace(line, t=108.0, epoch=2), start=passes).reached.time_s == 3.5
    stepped = take_step_clock(passes, StepCount(1, 109.0, 109.0, uncounted=5))
    assert (stepped.training_t, stepped.steps, stepped.backwards) == (109.0, 1, 0)


def test_without_steps_training_begins_with_the_loop_that_asks_whether_to_stop():
    loop = after(started(103.0), Asked(104.0, "stop"), report(110.0, 1, 0.1), report(111.0, 2, 0.1))
    assert loop.training_t == 104.0
    late = after(started(103.0), report(110.0, 1, 0.1), Asked(110.5, "stop"))
    assert late.training_t == 103.0


def test_without_steps_training_begins_with_the_script_of_rank_0():
    progress = after(started(102.0, rank=1), started(103.0), report(110.0, 1, 0.1))
    assert (progress.training_t, progress.startup_s) == (103.0, 3.0)
    assert progress.curve[0][:3] == (1, 7.0, 70.0)


def test_without_steps_or_start_training_begins_with_the_launch_and_has_no_startup():
    progress = after(report(110.0, 1, 0.1))
    assert (progress.training_t, progress.startup_s) == (100.0, None)
    assert progress.curve[0].time_s == 10.0


def test_a_report_before_the_first_step_counts_alike_whichever_is_read_first():
    first, steps = report(104.0, 0, 0.1), StepCount(1, 105.0, 105.0)
    apart = take_step_clock(after(started(103.0), first), steps)
    together = after(first, start=take_step_clock(after(started(103.0)), steps))
    assert apart.training_t == together.training_t == 105.0  # start-up is no training
    assert apart.epochs == together.epochs == 0
    assert [point.time_s for point in (*apart.curve, *together.curve)] == [0.0, 0.0]


def test_an_evaluation_before_training_is_no_epoch():
    begun = take_step_clock(
        after(started(103.0), report(104.0, 0, 0.1)), StepCount(1, 105.0, 105.0)
    )
    progress = after(*(report(105.0 + n, n, 0.1 * n) for n in (1, 2, 3)), start=begun)
    assert progress.epochs == 3
    assert [point.epoch for point in progress.curve] == [0, 1, 2, 3]
    reached = after(report(109.0, 4, 0.6), start=progress)
    assert reached.reached.epoch == 4


def test_an_evaluation_before_training_stays_one_however_long_steps_turn_out_to_be():
    begun = take_step_clock(
        after(started(103.0), report(104.9, 0, 0.1)), StepCount(1, 105.0, 105.0)
    )
    slow = take_step_clock(begun, StepCount(2, 105.0, 107.0))  # an evaluation lies between
    progress = after(report(108.0, 1, 0.2), start=slow)
    assert (progress.training_t, progress.epochs) == (104.9, 1)


def test_only_evaluations_before_any_step_may_be_no_training():
    assert after(report(104.0, 0, 0.1)).may_be_baseline
    assert not after(report(104.0, 1, 0.1)).may_be_baseline
    assert not take_step_clock(
        after(report(104.0, 0, 0.1)), StepCount(1, 105.0, 105.0)
    ).may_be_baseline


def test_a_restart_costs_what_it_takes_and_no_less():
    first = take_step_clock(after(started(103.0)), StepCount(5, 105.0, 107.0))
    reported = after(report(150.0, 1, 0.1), report(200.0, 2, 0.2), start=first)
    again = after(Started(300.0, 0, 1, 1), start=reported)
    progress = take_step_clock(again, StepCount(9, 105.0, 310.0))
    assert (progress.training_t, progress.epochs) == (103.0, 2)  # the first life's, not 300
    assert [point.time_s for point in progress.curve] == [47.0, 97.0]


def test_when_training_is_found_to_have_begun_later_all_times_are_from_there():
    early = after(started(103.0), report(110.0, 1, 0.1), report(120.0, 2, 0.6))
    assert [point.time_s for point in early.curve] == [7.0, 17.0]
    progress = take_step_clock(early, StepCount(1, 105.0, 105.0))
    assert [point.time_s for point in progress.curve] == [5.0, 15.0]
    assert progress.reached.time_s == 15.0


def test_training_was_last_active_at_its_last_step_or_report():
    assert LAUNCHED.active_t is None
    reported = after(started(103.0), report(110.0, 1, 0.1), report(112.0, 1, loss=2.0))
    assert reported.active_t == 112.0
    stepped = take_step_clock(reported, StepCount(9, 105.0, 115.0))
    assert (stepped.active_t, reported.active_t) == (115.0, 112.0)


def test_a_report_on_another_clock_costs_no_negative_time():
    progress = after(started(103.0), report(5.0, 1, 0.1))
    assert progress.curve[0][:3] == (1, 0.0, 0.0)


def test_time_is_none_before_training_and_runs_from_its_start():
    assert LAUNCHED.time_s is None
    assert after(started(103.0), report(110.0, 1, 0.1)).time_s == 7.0


def test_loops_that_count_from_0_have_done_as_many_epochs_as_those_that_count_from_1():
    from_1 = after(*(report(100.0 + n, n, 0.1) for n in (1, 2, 3)))
    from_0 = after(*(report(101.0 + n, n, 0.1) for n in (0, 1, 2)))
    assert from_1.epochs == from_0.epochs == 3


def test_the_last_report_of_an_epoch_counts():
    progress = after(report(101.0, 1, 0.1), report(102.0, 1, 0.3))
    assert [(point.epoch, point.value) for point in progress.curve] == [(1, 0.3)]
    assert progress.epochs == 1


def test_epochs_that_were_not_reported_count_by_their_number():
    assert after(report(101.0, 10, 0.1)).epochs == 10


def test_after_a_restart_the_curve_begins_again_where_the_ranks_do():
    first = [report(100.0 + n, n, 0.1) for n in (1, 2, 3)]
    again = [report(110.0 + n, n, 0.2) for n in (1, 2)]
    progress = after(*first, started(110.0), *again)
    assert [(point.epoch, point.value) for point in progress.curve] == [(1, 0.2), (2, 0.2)]
    assert progress.epochs == 3


def test_a_report_of_other_metrics_shows_their_names_and_begins_the_training():
    progress = after(started(103.0), report(110.0, 1, loss=2.0, lr=0.1))
    assert progress.seen_metrics == {"loss", "lr"}
    assert (progress.training_t, progress.epochs, progress.curve) == (103.0, 0, ())


def test_a_value_that_is_not_finite_is_a_gap_in_the_curve_and_shown_as_last():
    progress = after(report(101.0, 1, 0.2), report(102.0, 2, math.nan))
    assert [point.value for point in progress.curve] == [0.2, None]
    assert math.isnan(progress.last_value)
    assert progress.best_value == 0.2


def test_what_follows_the_target_changes_neither_its_time_nor_its_epoch():
    progress = after(*(report(100.0 + n, n, 0.25 * n) for n in (1, 2, 3)))
    assert (progress.reached.epoch, progress.reached.time_s, progress.epochs) == (2, 2.0, 3)


def test_the_epoch_of_the_target_is_a_number_of_epochs_for_loops_from_0_too():
    progress = after(report(101.0, 0, 0.1), report(102.0, 1, 0.9))
    assert progress.reached.epoch == 2


def test_a_report_before_the_first_step_never_reaches_the_target():
    untrained = after(started(100.0), report(101.0, 0, 0.9))
    assert untrained.reached is None
    stepped = take_step_clock(untrained, StepCount(2, 102.0, 103.0))
    assert stepped.reached is None
    assert after(report(104.0, 1, 0.9), start=stepped).reached.epoch == 1
    from_0 = take_step_clock(LAUNCHED, StepCount(2, 102.0, 103.0))
    assert after(report(104.0, 0, 0.9), start=from_0).reached.epoch == 1


@pytest.mark.parametrize(
    ("reported", "done"),
    [
        ([4, 9], 10),  # every five epochs, counted from 0
        ([4, 9, 14], 15),
        ([1, 3], 4),
        ([0, 5, 10], 11),
        ([5, 10], 10),
        ([1, 2], 2),
        ([1, 6, 11], 11),
        ([7, 8, 9], 9),  # the model of a checkpoint
    ],
)
def test_epochs_are_those_completed_whichever_of_them_are_evaluated(reported, done):
    progress = after(started(100.0), *(report(101.0 + n, n, 0.1) for n in reported))
    assert progress.epochs == epochs_of(progress.curve) == done
    baseline = after(report(100.0, 0, 0.1), start=replace(LAUNCHED, script_t=99.0))
    trained = take_step_clock(baseline, StepCount(2, 100.5, 100.6))
    later = [n for n in reported if n]
    progress = after(*(report(101.0 + n, n, 0.1) for n in later), start=trained)
    assert progress.epochs == epochs_of(progress.curve) == done - (0 in reported)


def test_a_loop_from_0_that_evaluates_every_five_epochs_reaches_after_a_whole_number_of_them():
    progress = after(report(101.0, 4, 0.1), report(102.0, 9, 0.9))
    assert progress.reached.epoch == 10
    assert after(report(103.0, 14, 0.9), start=replace(LAUNCHED, earlier=(4, 9))).epochs == 15


def test_a_restart_from_scratch_counts_only_the_epochs_of_its_own_way():
    first = [report(100.0 + n, n, 0.1) for n in range(1, 11)]
    again = [report(120.0 + n, n, 0.1 if n < 7 else 0.9) for n in range(1, 8)]
    progress = after(*first, started(115.0, restart=1), *again)
    assert (progress.epochs, progress.reached.epoch, progress.reached.time_s) == (7, 7, 27.0)
    assert [point.epoch for point in progress.curve] == [1, 2, 3, 4, 5, 6, 7]


def test_a_restart_from_a_checkpoint_goes_on_counting():
    first = [report(100.0 + n, n, 0.1) for n in range(1, 11)]
    progress = after(*first, started(115.0, restart=1), report(120.0, 11, 0.9))
    assert (progress.epochs, progress.reached.epoch) == (11, 11)


def test_a_baseline_after_a_restart_is_again_no_epoch():
    trained = take_step_clock(
        after(started(100.0), report(101.0, 0, 0.1)), StepCount(2, 102.0, 103.0)
    )
    again = [report(110.0 + n, n, 0.1) for n in range(3)]
    progress = after(report(104.0, 1, 0.1), started(110.0, restart=1), *again, start=trained)
    assert (progress.epochs, epochs_of(progress.curve)) == (2, 2)


def test_a_restored_model_that_is_evaluated_first_goes_on_where_it_was():
    trained = take_step_clock(
        after(started(100.0), report(101.0, 0, 0.1)), StepCount(2, 102.0, 103.0)
    )
    first = [report(103.0 + n, n, 0.1) for n in (1, 2)]
    again = [report(111.0, 0, 0.1), report(112.0, 3, 0.1)]
    progress = after(*first, started(110.0, restart=1), *again, start=trained)
    assert [point.epoch for point in progress.curve] == [0, 1, 2, 3]
    assert progress.epochs == 3


def curve_of(values, since=1):
    return tuple(CurvePoint(n, 2.0 * n + 1.0, None, v) for n, v in enumerate(values, since))


RISING, FALLING = curve_of((0.15, 0.30, 0.45)), curve_of((0.9, 0.7, 0.6))
NOISY = curve_of((0.6, 0.4, 0.61))


@pytest.mark.parametrize("how", ["preempted", "restarted"])
@pytest.mark.parametrize(
    ("before", "numbers", "values", "epochs"),
    [
        (RISING, (1, 2), (0.60, 0.75), 5),  # it has restored its weights, not its counter
        (RISING, (4, 5), (0.60, 0.75), 5),  # both
        (RISING, (3, 4), (0.44, 0.60), 4),  # both, of an older checkpoint
        (RISING, (1, 2), (0.15, 0.30), 2),  # nothing
        (RISING, (1,), (0.02,), 1),  # nothing, with another seed
        (RISING, (1, 2), (0.30, 0.45), None),  # either
        (RISING, (1,), (math.nan,), None),
        (RISING[:1], (1,), (0.15,), 1),
        (RISING[:1], (1,), (0.30,), None),  # one value shows no way
        (NOISY, (1,), (0.62,), None),
        (FALLING, (1, 2), (0.55, 0.5), 5),
        (FALLING, (1, 2), (0.9, 0.7), 2),
        (curve_of((0.15, 0.30, 0.45), since=0), (0, 1), (0.60, 0.75), 5),
        (curve_of((0.15, 0.30, 0.45), since=0), (0, 1), (0.15, 0.30), 2),
        (curve_of((0.15, 0.30, 0.45), since=0), (3, 4), (0.60, 0.75), 5),
    ],
)
def test_the_values_show_whether_an_interrupted_training_went_on(
    before, numbers, values, epochs, how
):
    mode = "min" if before is FALLING else "max"
    goal = replace(GOAL, mode=mode, target=0.01 if mode == "min" else 0.99)
    later = [report(120.0 + n, n, v) for n, v in zip(numbers, values, strict=True)]
    if how == "preempted":
        goal = replace(goal, curve=before, preemptions=1)
        earlier = tuple(point.epoch for point in before)
        progress = after(*later, start=replace(LAUNCHED, earlier=earlier), goal=goal)
    else:
        first = [report(100.0 + point.time_s, point.epoch, point.value) for point in before]
        progress = after(*first, started(115.0, restart=1), *later, goal=goal)
    assert (count_spans(progress)["whole_epochs"], progress.unclear) == (epochs, epochs is None)
    assert progress.curve[-1].epoch == (epochs or numbers[-1]) - (before[0].epoch == 0)


def test_numbers_of_its_own_that_a_script_restores_go_on_from_where_they_began():
    goal = replace(GOAL, curve=RISING, preemptions=1)
    start = replace(LAUNCHED, earlier=(1, 2, 3))
    first = [report(110.0, 1, 0.60), report(112.0, 2, 0.61)]
    again = [started(120.0, restart=1), report(124.0, 3, 0.62)]
    progress = after(*first, *again, start=start, goal=replace(goal, target=0.99))
    assert [point.epoch for point in progress.curve] == [4, 5, 6]


def test_a_restored_model_that_is_evaluated_before_it_trains_decides_nothing():
    goal = replace(GOAL, curve=RISING, preemptions=1)
    start = replace(LAUNCHED, earlier=(1, 2, 3), script_t=110.0, training_t=110.0)
    again = [report(110.0, 0, 0.45), report(120.0, 1, 0.60), report(122.0, 2, 0.61)]
    progress = after(*again, start=start, goal=goal)
    assert [point.epoch for point in progress.curve] == [0, 4, 5]
    assert count_spans(progress)["whole_epochs"] == 5


def test_energy_that_is_unknown_stays_unknown():
    progress = after(report(101.0, 1, 0.1), energy_between=lambda _since, _until: None)
    assert progress.curve[0].energy_j is None


def test_the_exit_code_of_a_restarted_rank_is_open_again():
    progress = after(started(101.0), ended(102.0, 0, 0), ended(102.0, 1, 1), started(103.0))
    assert progress.ranks.exit_codes == {1: 1}
    assert progress.script_t == 101.0  # a restart costs what it takes


def test_a_loop_that_counts_from_0_goes_on_counting_after_a_preemption():
    before = replace(LAUNCHED, earlier=(0, 1, 2, 3, 4))
    assert after(report(110.0, 5, 0.2), report(120.0, 6, 0.3), start=before).epochs == 7
    assert after(report(110.0, 0, 0.2), start=before).epochs == 1  # begun anew


def test_after_the_target_no_time_is_counted():
    progress = take_time(after(report(102.0, 1, 0.1)), 104.0)
    assert progress.time_s == 4.0
    progress = after(report(104.5, 2, 0.9), start=progress)
    assert take_time(progress, 109.0).time_s == 4.5


def test_in_a_run_that_is_ending_time_counts_to_its_last_step_or_report():
    ending = replace(after(report(102.0, 1, 0.1)), ending=True)
    assert take_time(ending, 109.0).time_s == 2.0
    ending = take_step_clock(ending, StepCount(1, 100.0, 105.0))
    assert take_time(ending, 109.0).time_s == 5.0


def test_where_steps_are_seen_time_and_cost_stop_at_the_last_one():
    trained = take_step_clock(after(report(102.0, 1, 0.1)), StepCount(9, 101.0, 103.0))
    saving = take_time(trained, 150.0)  # its outcome will not count that either
    assert saving.time_s == pytest.approx(103.0 - saving.training_t)
    stepped = take_time(take_step_clock(saving, StepCount(10, 101.0, 160.0)), 161.0)
    assert stepped.time_s == pytest.approx(160.0 - stepped.training_t)


def test_the_energy_of_a_training_only_decreases_if_it_began_later():
    before = take_step_clock(LAUNCHED, StepCount(9, 101.0, 103.0))
    before = take_energy(before, LAUNCHED, 0.636, 5.0)
    assert take_energy(before, before, 0.613, 5.0).energy_j == 0.636
    slow = take_energy(take_step_clock(LAUNCHED, StepCount(2, 101.0, 101.9)), LAUNCHED, 34.5, 8.0)
    fast = take_step_clock(slow, StepCount(99, 101.0, 102.0))  # so its first step was short, too
    fast = take_step_clock(fast, StepCount(199, 101.0, 103.0))
    assert fast.training_t > slow.training_t
    assert take_energy(fast, slow, 3.2, 8.0).energy_j == 3.2
    starting = replace(LAUNCHED, energy_j=18.4)  # before the first step, it is that of the script
    assert take_energy(before, starting, 0.0386, 5.0).energy_j == 0.0386


def test_time_never_decreases_when_a_run_ends():
    running = take_time(after(report(102.0, 1, 0.1)), 107.0)
    for event in ((), (report(105.0, 2, 0.9),)):  # a stop order, then the target from before it
        running = take_time(after(*event, start=replace(running, ending=True)), 110.0)
        assert running.time_s == 7.0


@pytest.mark.parametrize(("mode", "best"), [("max", 0.4), ("min", -0.4)])
def test_a_long_curve_is_thinned_but_keeps_the_first_best_last_and_reached_points(mode, best):
    goal = replace(GOAL, mode=mode, target=0.3 if mode == "max" else -0.3)
    values = dict.fromkeys(range(1, 4 * MOST_POINTS), 0.0) | {778: goal.target, 1778: best}
    progress = after(
        *(report(100.0 + epoch, epoch, value) for epoch, value in values.items()), goal=goal
    )
    epochs = [point.epoch for point in progress.curve]
    assert MOST_POINTS / 4 <= len(epochs) <= MOST_POINTS
    assert {1, 778, 1778, progress.epochs} <= set(epochs)
    assert progress.epochs == max(values)
    assert max(b - a for a, b in itertools.pairwise(epochs)) <= 16  # evenly
    assert all(point.value == values[point.epoch] for point in progress.curve)


def test_a_loop_that_counts_from_0_has_done_all_epochs_of_its_thinned_curve():
    count = MOST_POINTS + 500
    progress = after(started(100.0), *(report(101.0 + epoch, epoch, 0.1) for epoch in range(count)))
    assert progress.epochs == count


def test_waits_for_data_stop_at_the_target_and_need_a_loader():
    count = StepCount(9, 101.0, 109.0, passes=1, waits_s=(3.0, 1.0))
    progress = take_step_clock(LAUNCHED, count)
    assert progress.waits_s == (3.0, 1.0)
    assert take_step_clock(LAUNCHED, replace(count, passes=0)).waits_s == (None, None)
    reached = replace(progress, reached=CurvePoint(1, 8.0, None, 0.9))
    later = replace(count, steps=20, last_step_t=120.0, waits_s=(9.0, 9.0))
    assert take_step_clock(reached, later).waits_s == (3.0, 1.0)
