"""From what was seen of a run to its outcome: every status, and what is charged."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.factories import build_trial as trial
from tests.launcher.values import (
    LAUNCHED,
    METERED,
    UNMETERED,
    KnownMeter,
    after,
    ended,
    report,
    started,
    ten_watts,
)
from zeusrun.bandit.proof import Doubt, prove
from zeusrun.launcher.processes.torchrun import TICK_S, ProcessExit, StopLevel
from zeusrun.launcher.rundir.failure import Failure
from zeusrun.launcher.supervision.outcome import build_outcome, charge, outcome_now
from zeusrun.launcher.supervision.stopping import StopOrder
from zeusrun.metrics.progress import settle, take_step_clock, take_time
from zeusrun.metrics.seen import Ranks, Seen
from zeusrun.reasons import ReasonCode
from zeusrun.sidecar.events import Adapted, Built, Observed, Reported
from zeusrun.sidecar.step_clock import StepCount
from zeusrun.trial import CurvePoint, EnergySource, HostShare, TrialStatus, join_parts

RAISED = Failure(1, "rank 1 at train.py:3: ValueError: broken")
DELETED = Failure(None, "the run directory was deleted", ReasonCode.RUN_DELETED)
FULL = Failure(0, "rank 0: MemoryError", ReasonCode.OUT_OF_MEMORY)

NOTHING = after()
SILENT = after(started(103.0), ended(110.0, 0), ended(110.0, 1))
OTHER_NAME = after(started(103.0), report(110.0, 1, acuracy=0.9, loss=0.1))
MISSED = after(started(103.0), report(105.0, 1, 0.1), report(107.0, 2, 0.4))
REACHED = after(started(103.0), report(105.0, 1, 0.1), report(107.0, 2, 0.6), report(109.0, 3, 0.7))
BOTH_ENDED = (ended(110.0, 0), ended(110.0, 1))
ONE_ENDED = (ended(110.0, 0),)
ONE_FAILED = (ended(110.0, 0), ended(110.0, 1, 7))


def order(cause, level=StopLevel.TERMINATE):
    return StopOrder(cause, f"because of {cause.value}", level)


def outcome(
    progress,
    code=0,
    stop=None,
    *,
    failure=None,
    meter=METERED,
    outlived=(),
    left=(),
    earlier=(),
    **of,
):
    return build_outcome(
        trial(**of),
        progress=progress,
        exit_=ProcessExit(code, 113.0, outlived, left),
        stop=stop,
        failure=failure,
        meter=meter,
        finished_at="2025-06-01T12:00:13.000+00:00",
        earlier=earlier,
    )


def test_each_host_has_the_energy_of_its_own_devices_over_the_span():
    windows = []
    parts = {"": 30.0, "b": 10.0}
    meter = SimpleNamespace(
        **vars(METERED), host_energies_j=lambda *window: windows.append(window) or parts
    )
    hosts = (HostShare("a", 1), HostShare("b", 1), HostShare("c", 1))
    exit_ = ProcessExit(0, 113.0, (), ())
    found = build_outcome(
        trial(), progress=REACHED, exit_=exit_, stop=None, failure=None, meter=meter,
        finished_at="now", hosts=hosts,
    ).hosts  # fmt: skip
    assert [(share.name, share.energy_j) for share in found] == [
        ("a", 30.0),
        ("b", 10.0),
        ("c", None),
    ]
    assert windows == [(103.0, 107.0)]


def test_a_share_that_missed_a_target_in_percent_is_told_so():
    assert outcome(MISSED, target=70.0).reason.endswith(
        "target 70; if its values are shares of 1, write  target: 0.7"
    )
    assert outcome(MISSED, target=70.0, metric="accuracy_loss").reason[-6:] != "0.7"
    assert "shares" not in outcome(MISSED).reason


def test_a_metric_whose_only_values_do_not_count_was_never_seen():
    ended = outcome(after(report(105.0, 1, 35.0)))
    assert (ended.status, ended.reason_code) == (TrialStatus.FAILED, ReasonCode.NO_METRIC)
    assert "does not count" in ended.reason


def test_restarts_count_from_the_start_of_training_to_the_end_of_what_counts():
    started_late = after(started(101.0), started(102.0, restart=1), start=replace(LAUNCHED))
    assert outcome(after(report(105.0, 1, 0.1), start=started_late)).interruptions == ((1.0, 0),)
    stepped = take_step_clock(started_late, StepCount(9, 103.0, 106.0))
    trained = after(
        report(105.0, 1, 0.1), started(106.0, restart=2), report(110.0, 2, 0.6), start=stepped
    )
    ((time_s, epochs),) = outcome(trained).interruptions
    assert (time_s, epochs) == (106.0 - trained.training_t, 1)
    late = after(started(112.0, restart=3), report(115.0, 3, 0.7), start=trained)
    assert outcome(late).interruptions == outcome(trained).interruptions


def test_a_restart_of_another_rank_is_counted_once():
    both = after(started(101.0), started(101.0, 1), report(105.0, 1, 0.1))
    again = after(started(107.0, 1, restart=1), started(107.5, restart=1), start=both)
    assert outcome(after(report(109.0, 2, 0.6), start=again)).interruptions == ((6.5, 1),)


TARGET, HOPELESS, CHECKED, NO_METRIC, TIMEOUT, SIGNAL, PREEMPTED, PLANNED = map(
    order,
    [
        ReasonCode.TARGET_REACHED,
        ReasonCode.HOPELESS,
        ReasonCode.SPEED_CHECKED,
        ReasonCode.NO_METRIC,
        ReasonCode.TIMEOUT,
        ReasonCode.SIGNAL,
        ReasonCode.PREEMPTED,
        ReasonCode.PLANNED,
    ],
)
ENDED_AT_TARGET, TARGET = TARGET, order(ReasonCode.TARGET_REACHED, StopLevel.ASK)


@pytest.mark.parametrize(
    ("progress", "code", "stop", "failure", "status", "reason"),
    [
        # It ended by itself.
        (REACHED, 0, None, None, "REACHED", "accuracy 0.6 in epoch 2"),
        (MISSED, 0, None, None, "MISSED", "accuracy best 0.4 after 2 epochs, target 0.5"),
        (SILENT, 0, None, None, "FAILED", "never reported 'accuracy', and zeusrun saw no"),
        (NOTHING, 0, None, None, "FAILED", "never reported 'accuracy', and zeusrun saw no"),
        (OTHER_NAME, 0, None, None, "FAILED", "it reported acuracy, loss. Correct objective"),
        # It deleted its run directory: what it reported last is not known.
        (MISSED, 0, None, DELETED, "FAILED", DELETED.reason),
        (SILENT, 0, None, DELETED, "FAILED", DELETED.reason),
        (REACHED, 0, None, DELETED, "REACHED", "accuracy 0.6"),
        # It crashed.
        (MISSED, 1, None, RAISED, "FAILED", RAISED.reason),
        (MISSED, 1, None, FULL, "OOM", FULL.reason),
        (MISSED, 1, None, None, "FAILED", "torchrun failed without a recorded cause"),
        (NOTHING, 1, None, RAISED, "FAILED", RAISED.reason),
        (REACHED, 1, None, RAISED, "FAILED", "the target was reached in epoch 2, then rank 1"),
        (REACHED, 1, None, FULL, "OOM", "the target was reached in epoch 2, then rank 0"),
        # It aborted after its scripts had ended, or only one of them had.
        (after(*BOTH_ENDED, start=REACHED), 1, None, None, "REACHED", "accuracy 0.6"),
        (after(*BOTH_ENDED, start=MISSED), 1, None, None, "MISSED", "accuracy best 0.4"),
        (SILENT, 1, None, None, "FAILED", "never reported"),
        (after(*ONE_ENDED, start=REACHED), 1, None, None, "FAILED", "the target was reached"),
        (after(*ONE_FAILED, start=REACHED), 1, None, RAISED, "FAILED", "the target was reached"),
        # It was told of the target.
        (REACHED, 0, TARGET, None, "REACHED", "accuracy 0.6"),
        (REACHED, 1, TARGET, RAISED, "FAILED", "the target was reached"),
        # The script does not ask whether to stop.
        (REACHED, 1, ENDED_AT_TARGET, None, "REACHED", "accuracy 0.6"),
        (REACHED, -15, ENDED_AT_TARGET, RAISED, "REACHED", "accuracy 0.6"),
        # It was stopped.
        (MISSED, 1, HOPELESS, RAISED, "STOPPED", "because of hopeless"),
        (MISSED, 0, HOPELESS, None, "STOPPED", "because of hopeless"),
        (MISSED, 1, TIMEOUT, None, "STOPPED", "because of timeout"),
        (MISSED, 1, CHECKED, None, "CANCELLED", "because of speed_checked"),
        (NOTHING, 0, CHECKED, None, "CANCELLED", "because of speed_checked"),
        (MISSED, 1, CHECKED, RAISED, "CANCELLED", "because of speed_checked"),
        (MISSED, 1, CHECKED, FULL, "OOM", FULL.reason),
        (MISSED, -15, CHECKED, FULL, "OOM", FULL.reason),
        (MISSED, 0, CHECKED, FULL, "CANCELLED", "because of speed_checked"),
        (after(*ONE_FAILED, start=MISSED), 0, CHECKED, FULL, "OOM", FULL.reason),
        (after(*ONE_FAILED, start=REACHED), 0, HOPELESS, None, "STOPPED", "because of hopeless"),
        (MISSED, 1, HOPELESS, FULL, "STOPPED", "because of hopeless"),
        (MISSED, -9, SIGNAL, None, "CANCELLED", "because of signal"),
        (MISSED, 0, SIGNAL, None, "CANCELLED", "because of signal"),
        (NOTHING, 1, SIGNAL, None, "CANCELLED", "because of signal"),
        (MISSED, 1, SIGNAL, FULL, "CANCELLED", "because of signal"),
        # A part of the job has ended it.
        (MISSED, 0, PLANNED, None, "CANCELLED", "because of planned_end"),
        (SILENT, 0, PLANNED, None, "CANCELLED", "because of planned_end"),
        (NOTHING, 0, PLANNED, None, "CANCELLED", "because of planned_end"),
        (REACHED, 0, PLANNED, None, "REACHED", "accuracy 0.6"),
        # It was stopped, and had reached the target.
        (REACHED, 0, HOPELESS, None, "REACHED", "accuracy 0.6"),
        (REACHED, 0, SIGNAL, None, "REACHED", "accuracy 0.6"),
        (REACHED, 0, CHECKED, None, "REACHED", "accuracy 0.6"),
        (REACHED, 1, SIGNAL, None, "CANCELLED", "because of signal"),
        (REACHED, 1, TIMEOUT, None, "REACHED", "accuracy 0.6 in epoch 2"),
        (OTHER_NAME, 1, NO_METRIC, RAISED, "FAILED", "because of no_metric"),
    ],
)
def test_every_ending_has_its_status_and_reason(*, progress, code, stop, failure, status, reason):
    found = outcome(progress, code, stop, failure=failure)
    assert found.status is TrialStatus(status)
    assert reason in found.reason


OWN = replace(RAISED, is_own=True)


@pytest.mark.parametrize(
    ("stop", "failure", "warned"),
    [
        (PREEMPTED, OWN, True),
        (SIGNAL, replace(FULL, is_own=True), True),
        (PREEMPTED, RAISED, False),  # of another rank that has ended
        (PREEMPTED, None, False),
        (CHECKED, replace(FULL, is_own=True), False),  # its reason says so
        (None, OWN, False),
        (TARGET, OWN, False),
    ],
)
def test_a_rank_that_fails_while_it_is_ended_is_warned_of(stop, failure, warned):
    found = outcome(after(*ONE_FAILED, start=MISSED), 0, stop, failure=failure)
    late = "a rank failed while the training was ended, so its last checkpoint may be missing: "
    assert (f"{late}{failure and failure.reason}" in found.warnings) is warned


def test_one_that_fails_after_its_last_epoch_is_warned_of_too():
    found = outcome(after(*ONE_FAILED, start=REACHED), 0, PREEMPTED, failure=OWN)
    assert found.status is TrialStatus.REACHED
    assert RAISED.reason in found.warnings[-1]


@pytest.mark.parametrize("stop", [None, PREEMPTED])
def test_a_resumed_run_with_nothing_left_to_do_has_the_epochs_of_its_earlier_parts(stop):
    progress = replace(SILENT, seen={("accuracy", "report"): Seen(0.4, 0.4)}, best_value=0.4)
    found = outcome(progress, stop=stop, epochs=5, curve=MISSED.curve, preemptions=1)
    assert (found.status, found.epochs) == (TrialStatus.MISSED, None)  # the record's own count
    assert found.reason == "accuracy best 0.4 after 5 epochs, target 0.5"


def test_one_epoch_is_singular():
    found = outcome(after(report(105.0, 1, 0.1)))
    assert found.reason == "accuracy best 0.1 after 1 epoch, target 0.5"


def test_a_run_that_only_evaluates_a_model_which_meets_the_target_has_failed():
    found = outcome(after(report(105.0, 0, 0.9)))
    assert found.status is TrialStatus.FAILED
    assert found.reason.startswith("the target is met before the first step")
    assert found.cause is None  # so no batch size is to blame
    both = after(started(103.0), report(103.5, 0, 0.9), report(107.0, 1, 0.4))
    assert outcome(both).status is TrialStatus.MISSED


@pytest.mark.parametrize(
    ("preemptions", "code"), [(0, ReasonCode.NOT_TRAINED), (1, ReasonCode.TARGET_MISSED)]
)
def test_a_continued_run_that_evaluates_its_restored_model_was_not_untrained(preemptions, code):
    evaluated = after(started(101.0), report(102.0, 0, 0.6))
    found = outcome(take_step_clock(evaluated, StepCount(9, 103.0, 109.0)), preemptions=preemptions)
    assert found.reason_code is code


def test_a_run_whose_optimizer_never_stepped_has_failed_and_not_missed():
    """As with a batch size above the data, and a loader that drops the last batch."""
    idle = after(started(101.0), Built(102.0), report(103.0, 1, 0.1), report(104.0, 2, 0.1))
    found = outcome(idle)
    assert (found.status, found.reason_code) == (TrialStatus.FAILED, ReasonCode.NOT_TRAINED)
    assert found.reason.startswith("no optimizer has made a step: if the data loader drops")
    assert outcome(idle, preemptions=1).status is TrialStatus.MISSED


def test_a_metric_that_was_never_finite_has_no_best():
    found = outcome(after(report(105.0, 1, math.nan)))
    assert found.reason == "accuracy no finite value after 1 epoch, target 0.5"
    assert found.best_metric is None


def test_a_reached_trial_is_charged_up_to_the_target():
    found = outcome(REACHED)
    assert (found.time_s, found.energy_j, found.epochs) == (4.0, 40.0, 2)
    assert found.cost_j == 0.5 * 40.0 + 0.5 * 40.0 * 4.0
    assert (found.energy_source, found.max_power_w) == (EnergySource.COUNTER, 40.0)
    assert (found.startup_s, found.best_metric) == (3.0, 0.7)


@pytest.mark.parametrize(("code", "stop"), [(0, None), (1, None), (1, HOPELESS), (1, SIGNAL)])
def test_any_other_trial_is_charged_to_its_last_step_or_report_and_not_for_its_shutdown(code, stop):
    found = outcome(MISSED, code, stop, failure=RAISED)
    assert (found.time_s, found.energy_j, found.epochs, found.shutdown_s) == (4.0, 40.0, 2, 6.0)
    stepped = take_step_clock(MISSED, StepCount(9, 103.0, 109.0))
    found = outcome(stepped, code, stop, failure=RAISED)
    assert (found.time_s, found.energy_j, found.shutdown_s) == (6.0, 60.0, 4.0)


def test_a_run_that_times_out_after_the_target_has_reached_it_and_says_so():
    late = replace(TIMEOUT, reason="timed out after 60 s")
    found = outcome(REACHED, 1, late, failure=RAISED)
    assert (found.status, found.time_s, found.cost_j is None) == (TrialStatus.REACHED, 4.0, False)
    (warning,) = found.warnings
    assert warning == (
        "timed out after 60 s; the target was reached in epoch 2, where time and cost end"
    )
    assert outcome(MISSED, 1, late).status is TrialStatus.STOPPED


@pytest.mark.parametrize("stop", [None, TIMEOUT, HOPELESS])
def test_one_report_at_the_target_of_a_script_without_visible_steps_counts_at_a_timeout(stop):
    """At an earlier end, the report may have been of an untrained model."""
    once = after(replace(report(107.0, 1, 0.6), source="stdout"))
    assert once.reached is None
    found = outcome(once, 0 if stop is None else 1, stop).status
    assert found is (TrialStatus.STOPPED if stop is HOPELESS else TrialStatus.REACHED)


def test_energy_is_read_up_to_the_last_sample_but_in_the_first_tick():
    """The samples end about a tick ago; what comes after them is extrapolated."""
    windows = []
    meter = replace(METERED, energy_between=lambda *window: windows.append(window) or 7.0)
    before = after(started(103.0), report(105.0, 1, 0.1))
    first_t = 103.0 + TICK_S / 2
    for now_t, counted_t, until_t in (
        (110.0, None, 110.0 - TICK_S),
        (110.0, 106.0, 106.0),  # it is ending
        (first_t, None, first_t),
    ):
        now = replace(before, now_t=now_t, counted_t=counted_t)
        found = charge(now, before, trial(), meter)
        assert windows.pop() == (103.0, pytest.approx(until_t))
    assert (found.energy_j, found.power_w) == (7.0, 10.0)


def test_the_curve_is_whole_and_its_energies_are_of_the_final_samples():
    doubled = KnownMeter(lambda since, until: 2 * ten_watts(since, until))
    found = outcome(REACHED, meter=doubled)
    assert [tuple(point) for point in found.curve] == [
        (1, 2.0, 40.0, 0.1),
        (2, 4.0, 80.0, 0.6),
        (3, 6.0, 120.0, 0.7),
    ]


def test_without_energy_there_is_no_cost_unless_time_is_all_that_counts():
    found = outcome(REACHED, meter=UNMETERED)
    assert (found.energy_j, found.energy_source, found.cost_j) == (None, None, None)
    found = outcome(REACHED, meter=UNMETERED, eta_knob=0.0)
    assert (found.energy_j, found.energy_source, found.cost_j) == (None, None, 160.0)
    assert found.time_s == 4.0
    assert all(point.energy_j is None for point in found.curve)


def test_without_a_maximum_power_there_is_no_cost():
    found = outcome(REACHED, meter=replace(METERED, max_power_w=None))
    assert (found.energy_j, found.cost_j) == (40.0, None)


def test_without_any_training_nothing_is_charged():
    found = outcome(NOTHING, 1)
    assert (found.time_s, found.energy_j, found.cost_j, found.startup_s) == (None,) * 4
    assert found.curve == ()


def trained_on(*, passes=(1, 2, 3, 4)):
    """Return a training of 10 steps and 500 samples a second; an epoch of 1,000 takes 2 s."""
    progress = after(started(103.0), start=replace(LAUNCHED, ranks=Ranks(1)))
    progress = take_step_clock(progress, StepCount(1, 103.1, 103.1))
    progress = after(Observed(103.1, 0, 50, 1, 1, (0.1,), data=1000, length=20), start=progress)
    for epoch in passes:
        t = 103.0 + 2.0 * epoch
        progress = take_step_clock(progress, StepCount(20 * epoch, 103.1, t))
        values = {"accuracy": 0.3 * epoch}
        event = Reported(t, epoch, values, samples=1000 * epoch, steps=20 * epoch)
        progress = after(event, start=progress)
    return progress


def rates(ended, prefix=""):
    """Return samples, steps, epochs, progress and joules a second within one span."""
    names = ("samples", "steps", "epochs", "progress", "energy_j")
    time_s = getattr(ended, f"{prefix}time_s")
    return tuple(getattr(ended, f"{prefix}{name}") / time_s for name in names)


@pytest.mark.parametrize("epochs", [1, 2, 3, 4])
def test_the_amounts_of_each_span_agree_when_the_training_goes_on_after_its_target(epochs):
    ended = outcome(trained_on(passes=range(1, epochs + 1)))
    assert rates(ended) == pytest.approx((500, 10, 0.5, 0.5, 10), rel=0.02)
    assert rates(ended, "whole_") == pytest.approx((500, 10, 0.5, 0.5, 10), rel=0.02)
    assert ended.samples == 1000 * min(epochs, 2)
    assert ended.whole_samples == 1000 * epochs


def test_while_it_trains_on_the_two_spans_are_apart_already():
    charged = charge(
        take_time(replace(trained_on(), now_t=107.0), 112.0), LAUNCHED, trial(), METERED
    )
    now = outcome_now(trial(), charged, METERED, TrialStatus.DISPATCHED)
    assert (now.epochs, now.steps, now.samples, now.whole_epochs) == (2, 40, 2000, 4)
    assert (now.whole_steps, now.whole_samples, now.whole_progress) == (80, 4000, 4.0)
    assert now.whole_time_s == pytest.approx(2 * now.time_s, rel=0.02)
    assert now.whole_energy_j == pytest.approx(2 * now.energy_j, rel=0.05)


def test_steps_to_the_target_are_unknown_where_nothing_says_them():
    at_the_end = outcome(take_step_clock(REACHED, StepCount(50, 103.0, 107.0)))
    assert (at_the_end.steps, at_the_end.whole_steps) == (50, 50)
    on = outcome(take_step_clock(REACHED, StepCount(50, 103.0, 109.0)))
    assert (on.steps, on.whole_steps, on.samples) == (None, 50, None)
    assert outcome(REACHED).whole_steps is None


@pytest.mark.parametrize(
    ("value", "epochs", "told"),
    [(0.6, 5, "shows that the training went on"), (0.3, None, "does not show whether")],
)
def test_what_is_known_of_a_resumed_training_that_numbers_its_epochs_from_1_is_told(
    value, epochs, told
):
    first = after(started(103.0), *(report(103.0 + n, n, 0.15 * n) for n in (1, 2, 3)))
    so_far = replace(outcome(first), status=TrialStatus.PREEMPTED)
    resumed = trial(target=0.9).finish(so_far).resume("2025-06-01T13:00:00.000+00:00")
    then = after(
        started(103.0), report(105.0, 1, value), report(107.0, 2, value + 0.1), goal=resumed
    )
    joined = join_parts(resumed, outcome(then))
    assert (joined.epochs, joined.whole_epochs, joined.unclear) == (epochs, epochs, epochs is None)
    assert told in " ".join(joined.warnings)
    restarted = prove(resumed.finish(joined)).learning
    assert restarted is (None if epochs else Doubt.UNCLEAR)


def test_a_resumed_run_adds_up_each_span():
    first = replace(outcome(trained_on(passes=(1,))), status=TrialStatus.PREEMPTED)
    second = outcome(trained_on())
    resumed = trial().finish(first).resume("2025-06-01T13:00:00.000+00:00")
    joined = join_parts(resumed, second)
    assert (joined.steps, joined.samples, joined.whole_steps) == (60, 3000, 100)
    assert joined.whole_energy_j == pytest.approx(first.energy_j + second.whole_energy_j)
    unknown = join_parts(resumed, replace(second, steps=None))
    assert (unknown.steps, unknown.whole_steps) == (None, 100)


def test_the_outcome_fits_its_trial():
    finished = trial().finish(outcome(REACHED))
    assert finished.status is TrialStatus.REACHED
    assert finished.finished_at == "2025-06-01T12:00:13.000+00:00"


@pytest.mark.parametrize(
    ("grouped", "codes", "ranks", "warned"),
    [
        ((False, False), (0, 0), 2, True),
        ((False, True), (0, 0), 2, False),
        ((False, False), (0, 7), 2, False),
        ((False,), (0,), 1, False),
        ((False,), (0,), 2, False),
    ],
)
def test_ranks_that_never_met_are_told(grouped, codes, ranks, warned):
    ends = [ended(110.0, rank, codes[rank], each) for rank, each in enumerate(grouped)]
    start = replace(LAUNCHED, ranks=Ranks(ranks))
    progress = after(started(103.0), report(107.0, 2, 0.6), *ends, start=start)
    found = outcome(progress).warnings
    assert [text for text in found if text.startswith("2 ranks completed")] == (
        list(found) if warned else []
    )
    assert bool(found) == warned
    again = after(started(111.0, 0), ended(112.0, 0, 0, grouped=True), start=progress)
    assert outcome(again).warnings == ()
    told = [Observed(104.0, rank, 16, 1, alone=True) for rank in (0, 1)]  # during the run
    assert outcome(after(started(103.0), *told, *ends, start=start)).warnings == ()


def test_a_good_run_has_no_warnings():
    assert outcome(REACHED).warnings == ()


@pytest.mark.parametrize(
    ("progress", "changes", "words"),
    [
        (after(*BOTH_ENDED, start=REACHED), {"code": 1}, "aborted after its script had ended"),
        (replace(REACHED, ranks=Ranks(2, generation=1)), {}, "the ranks were restarted once"),
        (
            REACHED,
            {"outlived": ("sleep (7)",)},
            "processes that outlived the training, ended by zeusrun",
        ),
        (REACHED, {"outlived": tuple("abcdef")}, "ended by zeusrun: a, b, c, d, e"),
        (REACHED, {"left": tuple("abcdef")}, "could not kill: a, b, c, d, e; kill them"),
        (REACHED, {"left": ("sudo (7)",)}, "zeusrun could not kill: sudo (7); kill them"),
        (after(report(120.0, 9, math.nan), start=REACHED), {}, "accuracy was NaN at the end"),
    ],
)
def test_what_a_user_should_know_of_a_good_run_is_a_warning(progress, changes, words):
    found = outcome(progress, **changes)
    assert found.status is TrialStatus.REACHED
    (warning,) = found.warnings
    assert words in warning
    assert ", f" not in warning  # not more than five processes


def test_what_torchrun_said_on_its_way_is_no_restart():
    said = Failure(None, "torchrun: setting OMP_NUM_THREADS")
    assert outcome(REACHED, failure=said).warnings == ()


def test_a_nan_on_the_way_is_no_warning():
    progress = after(report(104.0, 1, math.nan), report(105.0, 2, 0.9))
    assert outcome(progress).warnings == ()


def limited(limit_w):
    """A meter of a run with this limit in force."""
    return replace(METERED, limit_w=lambda since_s, until_s: limit_w)


def test_the_limit_recorded_is_the_one_that_was_in_force_while_it_trained():
    windows = []
    meter = replace(METERED, limit_w=lambda *window: windows.append(window) or 250.0)
    found = outcome(REACHED, meter=meter, power_limit_w=400.0)
    assert found.power_limit_w == 250.0
    assert windows == [(103.0, 107.0)]
    assert outcome(REACHED, meter=limited(None), power_limit_w=400.0).power_limit_w is None
    assert outcome(NOTHING, meter=limited(250.0)).power_limit_w is None


def test_a_limit_that_the_driver_rounded_is_called_by_what_it_was_told():
    found = outcome(REACHED, meter=limited(249.9), power_limit_w=250.0)
    assert found.power_limit_w == 250.0


@pytest.mark.parametrize("code", [0, 1])
def test_a_deleted_run_directory_is_no_crash_of_its_batch_size(code):
    found = outcome(MISSED, code, failure=DELETED)
    assert (found.status, found.cause) == (TrialStatus.FAILED, None)


def test_only_a_crash_has_a_cause_that_others_are_compared_with():
    causes = [replace(each, cause="ValueError: broken") for each in (RAISED, FULL)]
    assert [outcome(MISSED, 1, failure=each).cause for each in causes] == [causes[0].cause, None]
    assert outcome(MISSED, 1, SIGNAL, failure=causes[0]).cause is None


def test_what_ran_out_of_memory_names_the_batch_size_that_it_had_grown_to():
    for size, told in ((32, FULL.reason), (64, f"its batch size had become 64; {FULL.reason}")):
        grown = replace(MISSED, adapted=(Adapted(104.0, 3, 1, size, None, "it can"),))
        assert outcome(grown, 1, failure=FULL).reason == told


def test_ranks_that_had_ended_before_the_one_that_failed_are_named():
    lost = Failure(0, "rank 0 at train.py:3: RuntimeError: closed")
    before = after(ended(109.0, 1), ended(110.0, 0, 1), start=MISSED)
    found = outcome(before, 1, failure=lost)
    assert found.status is TrialStatus.FAILED
    assert found.reason == f"{lost.reason}; rank 1 had ended before with exit code 0"
    later = after(ended(109.0, 0, 1), ended(110.0, 1), start=MISSED)
    assert outcome(later, 1, failure=lost).reason == lost.reason
    failed = after(ended(109.0, 1, 7), ended(110.0, 0, 1), start=MISSED)
    unknown = after(ended(109.0, 1), start=MISSED)
    for other in (failed, unknown):
        assert outcome(other, 1, failure=lost).reason == lost.reason


def test_ranks_that_show_no_training_are_not_said_to_have_trained():
    alone = after(ended(110.0, 0, grouped=False), ended(110.0, 1, grouped=False))
    assert outcome(alone).warnings == ()


def test_a_run_that_is_preempted_after_its_target_had_no_rank_that_aborted():
    found = outcome(REACHED, 1, PREEMPTED)
    assert found.status is TrialStatus.REACHED
    assert not any("aborted" in text for text in found.warnings)


def within(t, value, samples):
    return Reported(t, 1, {"accuracy": value}, "tensorboard", samples=samples)


def test_a_run_by_samples_counts_those_of_its_earlier_parts():
    ten = 10 * [CurvePoint(100, 1.0, None, 0.1)]
    earlier = {"preemptions": 1, "time_s": 50.0, "samples": 1000, "by_samples": tuple(ten)}
    events = [within(105.0, 0.1, 100), within(107.0, 0.6, 2200), within(109.0, 0.7, 3000)]
    steps = after(started(103.0), *events)
    assert outcome(steps).reason == "accuracy 0.6 after 2,200 samples"
    assert outcome(steps, **earlier).reason == "accuracy 0.6 after 3,200 samples"
    once = after(started(103.0), within(107.0, 0.6, 2200))
    assert outcome(once, **earlier).reason == "accuracy 0.6 after 3,200 samples"
    assert outcome(once).reason == "accuracy 0.6 in epoch 1"
    whole = after(started(103.0), report(107.0, 1, 0.6), report(109.0, 2, 0.7))
    assert outcome(whole, **earlier).reason == "accuracy 0.6 after 1,000 samples"
    low = after(started(103.0), within(105.0, 0.1, 100), within(107.0, 0.2, 2200))
    missed = "accuracy best 0.2 after 3,200 samples, target 0.5"
    assert outcome(low, **earlier).reason == missed


def test_of_a_run_by_samples_a_crash_and_a_timeout_after_the_target_are_told_in_samples():
    events = [within(105.0, 0.2, 1000), within(107.0, 0.6, 2200), within(109.0, 0.7, 3000)]
    steps = settle(after(started(103.0), *events))
    told = "the target was reached after 2,200 samples"
    assert outcome(steps, 1, failure=RAISED).reason.startswith(f"{told}, then rank 1")
    (warning,) = outcome(steps, 1, TIMEOUT).warnings
    assert warning == f"because of timeout; {told}, where time and cost end"


def test_a_curve_by_samples_has_the_times_and_joules_of_the_curve_by_epochs():
    early = after(started(103.0), within(105.0, 0.1, 100), within(107.0, 0.6, 200))
    assert [each.time_s for each in early.by_samples] == [2.0, 4.0]
    stepped = take_step_clock(early, StepCount(9, 104.0, 108.0))
    found = outcome(stepped)
    assert stepped.training_t > 103.0
    assert found.by_samples[-1][1:] == found.curve[-1][1:]
    assert found.by_samples[0].energy_j == pytest.approx(10.0 * found.by_samples[0].time_s)


def test_a_metric_that_misses_the_target_again_at_the_end_is_a_warning():
    fell = after(report(109.0, 3, 0.4567891), start=REACHED)
    told = "at its end accuracy was 0.456789, which misses the target of at least 0.5: what"
    (warning,) = outcome(fell).warnings
    assert warning.startswith(told)
    assert outcome(fell, -15, ENDED_AT_TARGET).warnings == (warning,)
    assert outcome(REACHED).warnings == outcome(MISSED).warnings == ()
    (nan,) = outcome(after(report(109.0, 3, math.nan), start=REACHED)).warnings
    assert nan == "accuracy was NaN at the end"
    assert not [each for each in outcome(fell, 1, failure=RAISED).warnings if "saved last" in each]
    below = after(report(105.0, 1, 0.4), report(107.0, 2, 0.6))
    (least,) = outcome(below, mode="min").warnings
    assert "0.6, which misses the target of at most 0.5" in least


def test_a_metric_that_only_another_batch_size_reports_is_a_miss_of_this_one():
    then = trial(global_batch_size=4, status=TrialStatus.REACHED, curve=REACHED.curve)
    missed = outcome(OTHER_NAME, earlier=[then], recurrence=2)
    assert (missed.status, missed.cause, missed.epochs) == (TrialStatus.MISSED, None, None)
    assert missed.reason == (
        "the script never reported 'accuracy'; it reported acuracy, loss. job-1-1 reported it with "
        "batch size 4, so the script may not evaluate with 32"
    )
    stopped = outcome(OTHER_NAME, 1, NO_METRIC, earlier=[then], recurrence=2)
    assert (stopped.status, stopped.reason) == (TrialStatus.MISSED, missed.reason)
    own = replace(then, global_batch_size=32)
    assert outcome(OTHER_NAME, earlier=[then, own]).status is TrialStatus.FAILED
