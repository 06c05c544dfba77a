"""When a running trial is stopped, how firmly, and why."""

from __future__ import annotations

import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.factories import load_job
from tests.launcher.values import GOAL, after, report, started
from zeusrun.launcher.events import Messages
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.launcher.processes.torchrun import StopLevel
from zeusrun.launcher.rundir.layout import RunPaths, ask_to_cancel, read_cancel
from zeusrun.launcher.supervision.stopping import (
    StopOrder,
    Stopping,
    StopRules,
    describe_signal,
    find_stop,
    how_at_once,
)
from zeusrun.reasons import ReasonCode

FREE = StopRules(cost_bound_j=None, timeout_s=None, stop_at_target=True)
TRAINING = replace(after(report(105.0, 1, 0.1)), now_t=110.0, cost_j=80.0)
REACHED = replace(after(started(103.0), report(105.0, 1, 0.9)), now_t=110.0, cost_j=80.0)


def test_a_run_within_its_bounds_goes_on():
    bounds = StopRules(cost_bound_j=80.0, timeout_s=10.0, stop_at_target=True)
    assert find_stop(TRAINING, bounds, []) is None


def test_a_run_without_bounds_goes_on_whatever_it_takes():
    assert find_stop(replace(TRAINING, now_t=1e9, cost_j=1e12), FREE, []) is None


def test_at_the_target_the_script_is_told_and_never_killed():
    order = find_stop(REACHED, FREE, [])
    assert (order.level, order.cause) == (StopLevel.ASK, ReasonCode.TARGET_REACHED)


@pytest.mark.parametrize(
    ("last_step_t", "now_t", "level"),
    [
        (104.9, 106.0, StopLevel.ASK),  # it may be saving
        (105.01, 106.0, StopLevel.ASK),  # the step before a line that is dated too early
        (105.1, 106.0, StopLevel.TERMINATE),  # it trains again
        (104.9, 706.0, StopLevel.TERMINATE),
        (None, 106.0, StopLevel.TERMINATE),  # its steps are not seen
    ],
)
def test_a_script_that_does_not_ask_is_signalled_once_it_has_saved(last_step_t, now_t, level):
    stepping_s = None if last_step_t is None else (101.0, last_step_t)
    progress = replace(REACHED, source="tensorboard", now_t=now_t, stepping_s=stepping_s)
    assert find_stop(progress, FREE, []).level is level


@pytest.mark.parametrize(
    ("last_step_t", "asked", "level"),
    [
        (104.9, {"stop"}, StopLevel.NONE),
        (104.9, set(), StopLevel.NONE),
        (105.1, {"stop"}, StopLevel.ASK),
        (105.1, set(), StopLevel.TERMINATE),
    ],
)
def test_lines_that_nobody_named_end_nothing_before_a_report_may_follow(last_step_t, asked, level):
    progress = replace(REACHED, source="stdout", preferred="auto", asked=frozenset(asked))
    progress = replace(progress, now_t=106.0, stepping_s=(101.0, last_step_t))
    assert find_stop(progress, FREE, []).level is level


def test_at_the_target_a_script_that_may_continue_is_not_told():
    assert find_stop(REACHED, replace(FREE, stop_at_target=False), []) is None


def test_a_cost_past_its_bound_is_hopeless():
    order = find_stop(TRAINING, replace(FREE, cost_bound_j=79.9), [])
    assert (order.level, order.cause) == (StopLevel.TERMINATE, ReasonCode.HOPELESS)
    assert order.reason == "its cost passed the bound of 79.9 J"


def test_an_unknown_cost_is_never_past_a_bound():
    assert find_stop(replace(TRAINING, cost_j=None), replace(FREE, cost_bound_j=1.0), []) is None


@pytest.mark.parametrize("cause", [ReasonCode.HOPELESS, ReasonCode.SPEED_CHECKED])
def test_what_the_policy_says_stops_a_run_before_its_bound_does(cause):
    bounds = replace(FREE, cost_bound_j=1.0)
    order = find_stop(TRAINING, bounds, [], StopOrder(cause, "because"))
    assert (order.level, order.cause, order.reason) == (StopLevel.TERMINATE, cause, "because")


def test_a_policy_does_not_stop_what_has_reached_its_target_or_was_signalled():
    verdict = StopOrder(ReasonCode.HOPELESS, "because")
    assert find_stop(REACHED, FREE, [], verdict).cause is ReasonCode.TARGET_REACHED
    assert find_stop(TRAINING, FREE, [signal.SIGINT], verdict).cause is ReasonCode.SIGNAL


@pytest.mark.parametrize("steps", [None, 5])
def test_a_cost_past_its_bound_waits_while_the_target_may_be_met(steps):
    """Where no steps are seen, the second report or the end shows whether the first one counts."""
    printed = replace(report(105.0, 1, 0.9), source="stdout")
    progress = replace(after(printed), now_t=110.0, cost_j=80.0, steps=steps)
    assert progress.early is not None
    order = find_stop(progress, replace(FREE, cost_bound_j=79.0), [])
    assert (order is None) == (steps is None)


@pytest.mark.parametrize("stop_at_target", [True, False])
def test_a_trial_that_has_reached_its_target_is_not_hopeless(stop_at_target):
    bounds = StopRules(cost_bound_j=1.0, timeout_s=None, stop_at_target=stop_at_target)
    order = find_stop(REACHED, bounds, [])
    assert order is None or order.cause is ReasonCode.TARGET_REACHED


@pytest.mark.parametrize("progress", [TRAINING, REACHED], ids=["training", "reached"])
def test_time_out_counts_from_the_launch(progress):
    order = find_stop(progress, replace(FREE, timeout_s=9.9), [])
    assert (order.level, order.cause) == (StopLevel.TERMINATE, ReasonCode.TIMEOUT)
    assert order.reason == "timed out after 9.9 s"


@pytest.mark.parametrize(
    ("signals", "level"),
    [
        ([signal.SIGINT], StopLevel.TERMINATE),
        ([signal.SIGINT, signal.SIGTERM], StopLevel.KILL),
        ([signal.SIGHUP, signal.SIGHUP, signal.SIGHUP], StopLevel.KILL),
    ],
)
def test_the_first_signal_is_gentle_and_the_second_is_not(signals, level):
    order = find_stop(REACHED, StopRules(1.0, 1.0, stop_at_target=True), signals)
    assert (order.level, order.cause) == (level, ReasonCode.SIGNAL)
    assert order.reason == f"{signals[0].name} to zeusrun"


def test_levels_are_ordered_by_firmness():
    assert StopLevel.NONE < StopLevel.ASK < StopLevel.TERMINATE < StopLevel.KILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_what_a_scheduler_sends_is_a_preemption(number):
    order = find_stop(REACHED, StopRules(None, None, stop_at_target=True), [number])
    assert (order.level, order.cause) == (StopLevel.TERMINATE, ReasonCode.PREEMPTED)
    order = find_stop(REACHED, StopRules(None, None, stop_at_target=True), [number, signal.SIGINT])
    assert (order.level, order.cause) == (StopLevel.KILL, ReasonCode.PREEMPTED)


HEAD, NODE = "the head", "a node"


@pytest.mark.parametrize(
    ("came", "level"),
    [
        ([NODE], StopLevel.TERMINATE),
        ([NODE, NODE], StopLevel.TERMINATE),
        ([NODE, HEAD], StopLevel.TERMINATE),
        ([HEAD, NODE], StopLevel.TERMINATE),
        ([NODE, HEAD, NODE], StopLevel.TERMINATE),
        ([NODE, HEAD, HEAD], StopLevel.KILL),
        ([HEAD, NODE, HEAD], StopLevel.KILL),
    ],
)
def test_a_signal_that_several_hosts_get_is_one_and_a_second_of_the_head_kills(
    tmp_path, came, level
):
    signals = CaughtSignals()
    stopping = Stopping(
        load_job(tmp_path), GOAL, RunPaths(tmp_path), signals, Messages(lambda _event: None),
        cost_bound_j=None,
    )  # fmt: skip
    for place in came:
        if place is HEAD:
            signals.received.append(signal.SIGTERM)
        else:
            stopping.take_signal("SIGINT to the launcher of host b")
        found = stopping.decide(TRAINING, None)
        assert not stopping.may_ask_policy
    assert found is level
    assert stopping.order.cause is ReasonCode.PREEMPTED
    place = "zeusrun" if came[0] is HEAD else "the launcher of host b"
    assert stopping.order.reason.endswith(f" to {place}")


def test_how_to_end_it_at_once_is_named_for_each_way_to_end_it():
    assert how_at_once(signal.SIGINT, cancelled=None) == "press Ctrl-C again to end it at once"
    assert how_at_once(signal.SIGTERM, cancelled=None) == "send SIGTERM again to end it at once"
    assert how_at_once(signal.SIGINT, cancelled="job-1-1") == (
        "`zeusrun cancel --now job-1-1` ends it at once"
    )


@pytest.mark.parametrize(
    ("kept", "rest"),
    [
        (False, ""),
        (True, ", and the next start, if it has a checkpoint, continues it"),
        (
            None,
            (
                ", and the next start, if it has a checkpoint, continues it; "
                "`zeusrun cancel --now job-1-1` ends it at once"
            ),
        ),
    ],
)
def test_what_a_signal_does_is_told_as_far_as_it_is_so_in_a_pod(kept, rest):
    order = find_stop(REACHED, StopRules(None, None, stop_at_target=True), [signal.SIGTERM])
    text = describe_signal(order, signal.SIGTERM, 30.0, None, "job-1-1", kept=kept)
    assert text == f"SIGTERM to zeusrun: the training ends within 30 s{rest}"


def test_a_cancel_that_comes_after_the_last_look_is_why_a_failed_run_ended(tmp_path):
    paths, messages = RunPaths(tmp_path), Messages(lambda _event: None)
    stopping = Stopping(
        load_job(tmp_path), GOAL, paths, CaughtSignals(), messages, cost_bound_j=None
    )
    assert stopping.decide(TRAINING, None) is StopLevel.NONE
    ask_to_cancel(paths)
    stopping.conclude(TRAINING, None, succeeded=False)
    assert stopping.order.cause is ReasonCode.CANCELLED


def test_a_part_of_the_job_that_asks_for_the_end_says_why(tmp_path):
    stopping = build_stopping(tmp_path)
    ask_to_cancel(RunPaths(tmp_path), (ReasonCode.REQUESTED, "stopped by a part: as asked"))
    assert stopping.decide(TRAINING, None) is StopLevel.TERMINATE
    assert (stopping.order.cause, stopping.order.reason) == (
        ReasonCode.REQUESTED,
        "stopped by a part: as asked",
    )
    ask_to_cancel(RunPaths(tmp_path), at_once=True)  # a user does not wait
    assert stopping.decide(TRAINING, None) is StopLevel.KILL
    assert stopping.order.cause is ReasonCode.REQUESTED


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"gently", b"1 cancelled", b"x y z", b"\xff \xff \xff", b"-1 cancelled a"),
        *(b"999999999999 cancelled a", b"1 target_reached a", b"2 preempted a"),
    ],
)
def test_any_other_request_is_that_of_a_user(tmp_path, content):
    paths = RunPaths(tmp_path)
    paths.cancel.write_bytes(content)
    assert read_cancel(paths) == (1, ReasonCode.CANCELLED, "cancelled by 'zeusrun cancel'")


def allocated(find_cause):
    """Return a job of a scheduler that says so why it was signalled."""
    return SimpleNamespace(keeps_files=None, find_cause=find_cause)


def build_stopping(folder, trial=GOAL, **changes):
    return Stopping(
        load_job(folder, **changes), trial, RunPaths(folder), CaughtSignals(),
        Messages(lambda _event: None), cost_bound_j=None,
    )  # fmt: skip


@pytest.mark.parametrize(("trained_s", "left_s"), [(None, 60.0), (6.0, 54.0)])
def test_a_preempted_trial_continues_with_the_rest_of_its_timeout(tmp_path, trained_s, left_s):
    stopping = build_stopping(tmp_path, replace(GOAL, time_s=trained_s), timeout_s=60)
    launched_t = TRAINING.launched_t
    in_time = replace(TRAINING, now_t=launched_t + left_s)
    assert stopping.decide(in_time, None) is StopLevel.NONE
    assert stopping.decide(replace(in_time, now_t=in_time.now_t + 1), None) is StopLevel.TERMINATE
    assert stopping.order.cause is ReasonCode.TIMEOUT


def test_a_run_has_the_bound_that_it_got_last(tmp_path):
    stopping = build_stopping(tmp_path)
    for bound_j, level in ((80.0, StopLevel.NONE), (79.0, StopLevel.TERMINATE)):
        stopping.bound(bound_j)
        assert stopping.decide(TRAINING, None) is level
    assert stopping.order.cause is ReasonCode.HOPELESS


@pytest.mark.parametrize("kept", ["stop", "continue"])
def test_three_epochs_without_the_metric_end_a_run_unless_the_job_file_lets_it_go_on(
    tmp_path, kept
):
    names = ("f1", "loss")
    silent = after(*(report(101.0 + n, n, **dict.fromkeys(names, 0.1)) for n in (1, 2)))
    stopping = build_stopping(tmp_path, objective={"missing_metric": kept})
    assert stopping.decide(silent, None) is StopLevel.NONE
    third = after(report(104.0, 3, **dict.fromkeys(names, 0.1)), start=silent)
    ends = kept == "stop"
    assert stopping.decide(third, None) is (StopLevel.TERMINATE if ends else StopLevel.NONE)
    if ends:
        assert stopping.order.reason.startswith("the first 3 epochs reported no 'accuracy', but f1")


@pytest.mark.parametrize("pause", [None, "no optimizer step for 9 s"])
def test_a_timeout_names_the_pause_in_which_it_came(tmp_path, pause):
    stopping = build_stopping(tmp_path, timeout_s=5)
    stopping.decide(TRAINING, pause)
    assert stopping.order.reason == "timed out after 5 s" + (f"; {pause}" if pause else "")


@pytest.mark.parametrize(
    ("epochs", "last_step_t", "level"),
    [
        (5, 104.0, StopLevel.ASK),  # there is nothing to stop
        (5, None, StopLevel.ASK),
        (5, 106.0, StopLevel.TERMINATE),  # it trains on
        (4, 104.0, StopLevel.TERMINATE),
    ],
)
def test_after_its_last_epoch_a_script_that_reached_the_target_may_only_save(
    tmp_path, epochs, last_step_t, level
):
    stepping_s = None if last_step_t is None else (101.0, last_step_t)
    reached = replace(REACHED, source="tensorboard", epochs=epochs, stepping_s=stepping_s)
    assert build_stopping(tmp_path).decide(replace(reached, now_t=999.0), None) is level


@pytest.mark.parametrize("cause", [ReasonCode.SPEED_CHECKED, ReasonCode.HOPELESS])
def test_a_signal_while_a_checked_run_ends_leaves_no_batch_size_to_follow(tmp_path, cause):
    """A hopeless run stays hopeless: no other batch size would follow at once."""
    stopping = build_stopping(tmp_path)
    stopping.policy_order = StopOrder(cause, "because")
    assert stopping.decide(TRAINING, None) is StopLevel.TERMINATE
    stopping._signals.received.append(signal.SIGINT)
    stopping.conclude(TRAINING, None, succeeded=False)
    checked = cause is ReasonCode.SPEED_CHECKED
    assert stopping.order.cause is (ReasonCode.SIGNAL if checked else cause)


def test_no_signal_is_lost_that_comes_while_they_are_read(tmp_path):
    class Received(list):
        def __getitem__(self, index):
            found = super().__getitem__(index)
            if not self:  # the handler runs between two instructions
                self.append(signal.SIGINT)
            return found

    stopping = build_stopping(tmp_path)
    stopping._signals.received = Received()
    assert stopping.decide(TRAINING, None) is StopLevel.NONE
    assert stopping.decide(TRAINING, None) is StopLevel.TERMINATE


@pytest.mark.parametrize("first", ["file", "signal"])
@pytest.mark.parametrize("now", [False, True])
def test_a_request_and_its_signal_count_once_in_a_job_of_slurm(tmp_path, first, now):
    paths, messages, signals = RunPaths(tmp_path), Messages(lambda _event: None), CaughtSignals()
    trial = replace(GOAL, allocation="slurm:7")
    stopping = Stopping(load_job(tmp_path), trial, paths, signals, messages, cost_bound_j=None)
    for step in ("signal", "file") if first == "signal" else ("file", "signal", "signal"):
        if step == "file":
            ask_to_cancel(paths, at_once=now)
        else:
            signals.received.append(signal.SIGINT)
        level = stopping.decide(TRAINING, None)
    assert level is (StopLevel.KILL if now else StopLevel.TERMINATE)
    cause = ReasonCode.CANCELLED if first == "file" else ReasonCode.SIGNAL
    assert stopping.order.cause is cause
    # The list of the handler has the signals that came, and no others.
    assert len(signals.received) == (1 if first == "signal" else 2)
    assert len(stopping.received) == (2 if now else 1)


@pytest.mark.parametrize(
    ("found", "cause", "reason"),
    [
        (None, ReasonCode.PREEMPTED, "SIGTERM to zeusrun"),
        ((ReasonCode.CANCELLED, "it was cancelled"), ReasonCode.CANCELLED, "it was cancelled"),
        ((ReasonCode.PREEMPTED, "its time ends"), ReasonCode.PREEMPTED, "its time ends"),
    ],
)
@pytest.mark.parametrize("succeeded", [None, False])
def test_a_scheduler_says_why_it_has_sent_a_signal(tmp_path, found, cause, reason, succeeded):
    signals, said = CaughtSignals(), []
    stopping = Stopping(
        load_job(tmp_path), GOAL, RunPaths(tmp_path), signals, Messages(said.append),
        cost_bound_j=None, allocation=allocated(lambda: found),
    )  # fmt: skip
    signals.received.append(signal.SIGTERM)
    if succeeded is None:
        for level in (StopLevel.TERMINATE, StopLevel.TERMINATE, StopLevel.KILL):
            signals.received += [signal.SIGTERM] * (level is StopLevel.KILL)
            assert stopping.decide(TRAINING, None) is level
        assert [reason in event.text for event in said] == [True]
    else:
        stopping.conclude(TRAINING, None, succeeded=False)
    assert (stopping.order.cause, stopping.order.reason) == (cause, reason)
    assert stopping.preempted is (cause is ReasonCode.PREEMPTED)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_scheduler_is_not_asked_about_what_people_do(tmp_path, number):
    signals, asked = CaughtSignals(), []
    stopping = Stopping(
        load_job(tmp_path), GOAL, RunPaths(tmp_path), signals, Messages(lambda _event: None),
        cost_bound_j=None, allocation=allocated(lambda: asked.append(1)),
    )  # fmt: skip
    assert stopping.decide(TRAINING, None) is StopLevel.NONE
    signals.received.append(number)
    stopping.decide(TRAINING, None)
    assert stopping.order.cause is ReasonCode.SIGNAL
    assert not asked


def test_a_signal_of_another_host_has_the_cause_that_the_scheduler_says(tmp_path):
    stopping = Stopping(
        load_job(tmp_path), GOAL, RunPaths(tmp_path), CaughtSignals(),
        Messages(lambda _event: None), cost_bound_j=None,
        allocation=allocated(lambda: (ReasonCode.CANCELLED, "it was cancelled")),
    )  # fmt: skip
    stopping.take_signal("SIGTERM to the launcher of host b")
    assert stopping.decide(TRAINING, None) is StopLevel.TERMINATE
    assert (stopping.order.cause, stopping.order.reason) == (
        *(ReasonCode.CANCELLED, "it was cancelled"),
    )
