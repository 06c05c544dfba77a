"""Which attempts a submit makes one after the other."""

from __future__ import annotations

import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.factories import REACHED, begin, build_trial, load_job
from tests.history.memory import MemoryHistory
from zeusrun.choice.choose import Attempt, NothingLeft
from zeusrun.choice.problem import Forced
from zeusrun.errors import ExitCode
from zeusrun.launcher.attempts import recurrence
from zeusrun.launcher.attempts.recurrence import (
    AttemptResult,
    SubmitResult,
    _attempts_before,
    _may_go_on,
    exit_code,
)
from zeusrun.launcher.context import Submission
from zeusrun.launcher.events import Warned
from zeusrun.launcher.queue.admission import Request
from zeusrun.launcher.supervision.stopping import StopOrder
from zeusrun.reasons import ReasonCode
from zeusrun.trial import TrialStatus


def test_what_a_speed_check_replaced_is_none_of_the_attempts_that_are_allowed(tmp_path):
    submission = SimpleNamespace(spec=load_job(tmp_path, attempts=2), forced=None)
    replaced = Attempt(replace(build_trial(), status=TrialStatus.CANCELLED), replaced=True)
    made = [replaced]
    for number, more in ((2, True), (3, False)):
        missed = replace(build_trial(attempt=number), status=TrialStatus.MISSED)
        made.append(Attempt(missed, replaced=False))
        assert _may_go_on(submission, made, None) is more


@pytest.mark.parametrize(
    ("status", "stop", "forced", "more"),
    [
        (TrialStatus.MISSED, None, None, True),
        (TrialStatus.STOPPED, ReasonCode.HOPELESS, None, True),
        (TrialStatus.STOPPED, ReasonCode.TIMEOUT, None, False),
        (TrialStatus.MISSED, ReasonCode.NO_METRIC, None, True),
        (TrialStatus.OOM, None, None, True),
        ("a crash", None, None, True),
        (TrialStatus.FAILED, None, None, False),
        (TrialStatus.REACHED, None, None, False),
        (TrialStatus.MISSED, None, 32, False),  # of the user's own choice
    ],
)
def test_another_attempt_follows_what_its_batch_size_may_have_failed_for(
    tmp_path, status, stop, forced, more
):
    cause = status if status == "a crash" else None
    status = TrialStatus.FAILED if cause else status
    submission = SimpleNamespace(spec=load_job(tmp_path, attempts=2), forced=forced)
    made = [Attempt(build_trial(status=status, cause=cause), replaced=False)]
    assert _may_go_on(submission, made, None if stop is None else StopOrder(stop, "so")) is more


def test_the_attempts_before_a_preempted_one_are_those_of_its_recurrence():
    history = MemoryHistory()
    for number, attempt, status in (
        *((1, 1, TrialStatus.MISSED), (2, 1, TrialStatus.CANCELLED), (2, 2, TrialStatus.MISSED)),
        (2, 3, TrialStatus.PREEMPTED),
    ):
        trial = build_trial(number, attempt)
        begin(history, trial)
        history.finish(trial.trial, replace(REACHED, status=status))
    submission = SimpleNamespace(history=history)
    found = _attempts_before(submission, history.find("job-2-3"))
    assert [(each.trial.trial, each.replaced) for each in found] == [
        *(("job-2-1", True), ("job-2-2", False)),
    ]
    assert len(_attempts_before(submission, history.find("job-2-2"))) == 1
    assert _attempts_before(SimpleNamespace(), history.find("job-2-1")) == []  # reads nothing


def test_a_result_counts_the_attempts_that_could_reach_the_target():
    looked, missed = (build_trial(status=status) for status in (CANCELLED, TrialStatus.MISSED))
    reached = build_trial(status=TrialStatus.REACHED)
    result = SubmitResult(1, (looked, missed, reached), 0)
    assert (result.attempts, result.reached) == (2, True)
    assert not SubmitResult(1, (reached, missed), 0).reached
    assert not SubmitResult(1, (), 0).reached


MISSED = TrialStatus.MISSED


@pytest.mark.parametrize(
    ("ends", "signals", "found"),
    [
        *(([REACHED.status, None], [], (1, 0)), ([MISSED, REACHED.status], [], (2, 0))),
        *(([MISSED, None], [], (1, 4)), ([MISSED, MISSED], [signal.SIGINT], (1, 130))),
    ],
)
def test_a_submit_makes_attempts_until_the_target_or_a_signal(
    tmp_path, monkeypatch, ends, signals, found
):
    said, given = [], []

    def run(_submission, made, _emit, caught):
        given.append(len(made))
        caught.received += signals
        status = ends[len(made)]
        trial = build_trial(attempt=len(given), status=status or MISSED)
        return AttemptResult(trial, None) if status else NothingLeft("nothing is left")

    monkeypatch.setattr(recurrence, "run", run)
    submission = Submission(
        spec=load_job(tmp_path, attempts=2), history=MemoryHistory(), policy=None,
        devices=[], world_size=1, torchrun=None, home=tmp_path, environment={},
    )  # fmt: skip
    result = recurrence.submit(submission, said.append)
    assert (len(result.trials), result.exit_code, result.recurrence) == (*found, 1)
    assert (Warned("nothing is left") in said) is (len(given) > found[0])
    assert given == [0, 1][: len(given)]


def test_a_batch_size_of_the_user_is_forced_with_its_reason():
    assert (Request().forced, Request().ticket) == (None, 0)  # tickets count from 1
    assert Request(batch_size=16).forced == Forced(16, "chosen by --batch-size")


TERM, USR1, INT, HUP = signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP
STOPPED, FAILED = TrialStatus.STOPPED, TrialStatus.FAILED
PREEMPTED, CANCELLED = TrialStatus.PREEMPTED, TrialStatus.CANCELLED


@pytest.mark.parametrize(
    ("status", "code", "stop", "signals", "exits"),
    [
        # its time limit ended it, and it cannot resume
        (STOPPED, ReasonCode.TIMEOUT, ReasonCode.PREEMPTED, [USR1], 124),
        (STOPPED, ReasonCode.TIMEOUT, ReasonCode.PREEMPTED, [USR1, TERM], 124),
        (STOPPED, ReasonCode.TIMEOUT, ReasonCode.PREEMPTED, [], 124),  # the sentinel heard it
        (PREEMPTED, ReasonCode.PREEMPTED, ReasonCode.PREEMPTED, [USR1], 75),
        (PREEMPTED, ReasonCode.PREEMPTED, ReasonCode.PREEMPTED, [], 75),
        (CANCELLED, ReasonCode.CANCELLED, ReasonCode.CANCELLED, [TERM], 143),  # scancel
        (CANCELLED, ReasonCode.CANCELLED, ReasonCode.CANCELLED, [INT], 130),  # zeusrun cancel
        (CANCELLED, ReasonCode.REPLACED, ReasonCode.REPLACED, [INT], 75),
        (CANCELLED, ReasonCode.REQUESTED, ReasonCode.REQUESTED, [INT], 130),
        (CANCELLED, ReasonCode.PLANNED, ReasonCode.PLANNED, [], ExitCode.TARGET_MISSED),
        (CANCELLED, ReasonCode.SIGNAL, ReasonCode.SIGNAL, [INT, TERM], 130),
        (CANCELLED, ReasonCode.SIGNAL, ReasonCode.SIGNAL, [HUP], 129),
        # on this machine: SIGTERM is a preemption also if the ranks were faster to fail
        (PREEMPTED, ReasonCode.PREEMPTED, ReasonCode.PREEMPTED, [TERM], 75),
        (FAILED, None, ReasonCode.PREEMPTED, [TERM], 75),
        (TrialStatus.REACHED, None, ReasonCode.PREEMPTED, [TERM], 0),
        # its own timeout_s, with and without a signal meanwhile
        (STOPPED, ReasonCode.TIMEOUT, ReasonCode.TIMEOUT, [], 124),
        (STOPPED, ReasonCode.TIMEOUT, ReasonCode.TIMEOUT, [INT], 124),
        (TrialStatus.MISSED, None, None, [], ExitCode.TARGET_MISSED),
        (STOPPED, ReasonCode.HOPELESS, ReasonCode.HOPELESS, [], ExitCode.TARGET_MISSED),
        (FAILED, ReasonCode.NO_METRIC, ReasonCode.NO_METRIC, [], ExitCode.BAD_INPUT),
        (
            TrialStatus.MISSED,
            ReasonCode.NO_METRIC,
            ReasonCode.NO_METRIC,
            [],
            ExitCode.TARGET_MISSED,
        ),
        (TrialStatus.MISSED, None, ReasonCode.TIMEOUT, [], ExitCode.TARGET_MISSED),
        (FAILED, None, None, [], ExitCode.TRAINING_FAILED),
    ],
)
def test_the_exit_code_says_who_ended_a_run(status, code, stop, signals, exits):
    trial = replace(build_trial(), status=status, reason_code=code)
    order = None if stop is None else StopOrder(stop, "so")
    assert exit_code(trial, order, signals) == exits
