"""What an attempt holds while it is made, and gives back."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.factories import PREEMPTED, REACHED, begin, build_trial, load_job
from tests.history.memory import MemoryHistory
from zeusrun.choice.choose import Attempt
from zeusrun.errors import HistoryError, LaunchError
from zeusrun.launcher import heartbeat
from zeusrun.launcher.attempts import recurrence
from zeusrun.launcher.attempts.recurrence import (
    AttemptResult,
    _announce,
    _announce_end,
    _finish_if_it_fails,
    _record,
)
from zeusrun.launcher.events import Messages, Noted, TrialEnded, Warned
from zeusrun.launcher.rundir.layout import Live, ask_to_cancel, create_run, read_cancel, write_live
from zeusrun.launcher.rundir.ownership import RunLock
from zeusrun.launcher.supervision.stopping import StopOrder
from zeusrun.reasons import ReasonCode
from zeusrun.redaction import Mask
from zeusrun.sidecar.events import Reported, encode_event
from zeusrun.trial import Bound, Decision, SizeChange, Stage, TrialStatus


@pytest.mark.parametrize(
    ("continued", "trained", "status"),
    [
        (True, False, TrialStatus.PREEMPTED),
        (True, True, TrialStatus.FAILED),
        (False, False, TrialStatus.FAILED),
    ],
)
def test_a_preempted_trial_that_cannot_be_started_again_can_still_be_continued_later(
    tmp_path, continued, trained, status
):
    paths, history = create_run(tmp_path, "job", "job-1-1"), MemoryHistory()
    trial = build_trial(run_dir=str(paths.run_dir))
    begin(history, trial)
    if continued:
        trial = history.finish(trial.trial, PREEMPTED).resume("2026-01-02T00:00:00Z")
        begin(history, trial)
    if trained:
        reports = [Reported(100.0 + n, n, {"accuracy": 0.1}) for n in (4, 5)]
        paths.sidecar.write_bytes(b"".join(map(encode_event, reports)))
    begun = SimpleNamespace(trial=trial, paths=paths, mask=Mask(()))
    with (
        pytest.raises(LaunchError),
        _finish_if_it_fails(SimpleNamespace(history=history), begun),
    ):
        raise LaunchError("torchrun is not installed")
    found = history.find(trial.trial)
    assert found.status is status
    assert found.reason == "zeusrun could not run it: torchrun is not installed"
    assert found.reason_code is ReasonCode.LAUNCHER_FAILED


def announced(folder, trial, made=(), **changes):
    """Return what is said of a trial that is about to start."""
    paths, said = create_run(folder, "job", trial.trial), []
    choice = {"about_history": (), "note": None, "too_large": None, "earlier": ()}
    choice |= {"decision": Decision(32, Stage.EXPLORE, "", bound=Bound(7.0)), **changes}
    begun = SimpleNamespace(
        trial=trial, choice=SimpleNamespace(**choice), paths=paths, messages=Messages(said.append)
    )
    spec = load_job(folder, attempts=3)
    _announce(SimpleNamespace(spec=spec), begun, made)
    return said


@pytest.mark.parametrize("replaced", [False, True])
def test_an_attempt_after_a_speed_check_is_not_called_another_try(tmp_path, replaced):
    made = [Attempt(build_trial(status=TrialStatus.CANCELLED), replaced=replaced)]
    *notes, _ = announced(tmp_path, build_trial(1, 2), made)
    texts = [note.text for note in notes]
    assert texts == ([] if replaced else ["trying again with batch size 32, attempt 2 of 3"])


def test_what_is_new_in_the_history_is_told_with_the_first_attempt_alone(tmp_path):
    earlier = (build_trial(1, startup_s=3.0).finish(replace(REACHED, startup_s=3.0)),)
    about = {"about_history": ("it lacks job-3-1",), "earlier": earlier}
    note, starts = announced(tmp_path, build_trial(2), **about)
    assert note == Noted("history: it lacks job-3-1")
    assert (starts.trial, starts.cost_bound_j) == (build_trial(2), 7.0)
    assert (starts.usual.startup_s, starts.instrumented) == (3.0, True)
    assert len(announced(tmp_path, build_trial(2, 2), **about)) == 1


def test_an_attempt_after_a_crash_is_told_to_be_the_last_one_if_it_crashes_alike(tmp_path):
    crashed = Attempt(build_trial(status=TrialStatus.FAILED, cause="a crash"), replaced=False)
    looked = Attempt(build_trial(status=TrialStatus.CANCELLED), replaced=True)
    *notes, _ = announced(tmp_path, build_trial(1, 3), [looked, crashed])
    assert [note.text for note in notes] == [
        "trying again with batch size 32, attempt 2 of 3",
        "if this attempt fails with the same error, it is the last one with this batch size",
    ]


@pytest.mark.parametrize("saved", [False, True])
def test_a_preempted_trial_is_told_to_continue_or_to_start_again(tmp_path, saved):
    paths = create_run(tmp_path, "job", "job-1-1")
    if saved:
        (paths.checkpoints / "last.pt").touch()
    cut = build_trial().finish(PREEMPTED).resume("2026-01-02T00:00:00Z")
    warned, note, _ = announced(tmp_path, cut, note="the script has changed")
    assert warned == Warned("the script has changed")
    then = "is continued" if saved else "starts from the beginning: it saved no checkpoint"
    assert note == Noted(f"job-1-1 was preempted and {then}")
    assert announced(tmp_path, build_trial(2), note="so")[0] == Noted("so")


def test_how_far_a_batch_size_may_grow_is_told_with_the_run_that_grew_too_large(tmp_path):
    grown = build_trial(global_batch_size=64, batch_sizes=(SizeChange(1, 64), SizeChange(3, 256)))
    note, _ = announced(tmp_path, build_trial(2), too_large=grown, largest_that_fits=128)
    assert note.text == (
        "the batch size may grow to 128, because job-1-1 ran out of memory with 256; if it fits "
        "now: zeusrun history --forget job-1-1"
    )


CHECKED, HOPELESS = ReasonCode.SPEED_CHECKED, ReasonCode.HOPELESS
IN_GRACE = "it reached the target within its grace period"


@pytest.mark.parametrize(
    ("status", "cause", "replaced", "shown", "noted"),
    [
        (TrialStatus.CANCELLED, CHECKED, True, True, []),
        (TrialStatus.OOM, CHECKED, True, False, []),  # an end of its own
        (TrialStatus.CANCELLED, ReasonCode.SIGNAL, False, False, []),
        (TrialStatus.CANCELLED, None, False, False, []),
        (TrialStatus.STOPPED, HOPELESS, False, False, []),
        (TrialStatus.REACHED, CHECKED, False, False, [IN_GRACE]),
        (TrialStatus.REACHED, HOPELESS, False, False, [IN_GRACE]),
        (TrialStatus.REACHED, ReasonCode.TARGET_REACHED, False, False, []),
        (TrialStatus.REACHED, None, False, False, []),
    ],
)
def test_an_attempt_that_a_speed_check_ended_is_replaced(status, cause, replaced, shown, noted):
    said = []
    stop = None if cause is None else StopOrder(cause, "because")
    ended = AttemptResult(build_trial(status=status), stop)
    assert ended.replaced is replaced
    assert _announce_end(SimpleNamespace(messages=Messages(said.append)), ended) is ended
    assert said == [*map(Noted, noted), TrialEnded(ended.trial, shown)]


@pytest.mark.parametrize(
    ("case", "where"),
    [
        ("full", "Its outcome is kept in {record}; the next submit records it."),
        ("taken for lost", "Its outcome is kept in {record}."),
        (
            "replaced",
            (
                "The history was deleted or replaced while the trial ran. Its outcome is kept in "
                "{record}; `zeusrun repair --restore job` records it."
            ),
        ),
        ("no disk", "The run directory does not contain it either."),
    ],
)
def test_an_outcome_that_the_history_cannot_store_is_an_error_that_says_where_it_is(
    tmp_path, monkeypatch, case, where
):
    paths, history = create_run(tmp_path, "job", "job-1-1"), MemoryHistory()
    trial = build_trial(run_dir=str(paths.run_dir))
    if case != "replaced":
        begin(history, trial)
    if case == "taken for lost":
        history.finish(trial.trial, replace(REACHED, status=TrialStatus.LOST))

    def fail(*_arguments):
        raise HistoryError("the disk is full.")

    monkeypatch.setattr(history, "finish", fail)
    if case == "no disk":
        monkeypatch.setattr(recurrence, "write_record", lambda *_: False)
    begun = SimpleNamespace(trial=trial, paths=paths, mask=Mask(()))
    with pytest.raises(HistoryError) as error:
        _record(history, begun, REACHED)
    assert str(error.value) == (
        f"job-1-1 ended as REACHED ({REACHED.reason}), but the history could not store it: "
        f"the disk is full. {where.format(record=paths.trial)}"
    )


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_the_lease_is_held_until_the_attempt_ends_however_it_ends(tmp_path, error):
    paths = create_run(tmp_path, "job", "job-1-1")
    begun = SimpleNamespace(trial=build_trial(), paths=paths, lease=RunLock(paths))
    assert begun.lease.acquire()
    try:
        with (
            begun.lease,
            recurrence._send_heartbeats(SimpleNamespace(history=MemoryHistory()), begun),
        ):
            assert RunLock(paths).is_held()
            if error is not None:
                raise error
    except KeyboardInterrupt:
        assert error is not None
    assert not RunLock(paths).is_held()


class Heard(MemoryHistory):
    """A shared history of which a test says what it does with a heartbeat."""

    address = "there/{}".format

    def __init__(self, *answers):
        super().__init__()
        self.answers, self.lives, self.traces = iter(answers), [], []

    def renew(self, trial, live=None):
        self.lives.append(live)
        return {True: True, False: False}[next(self.answers)]

    def keep_trace(self, *trace):
        self.traces.append(trace)


def beating(folder, history):
    """Return a heartbeat of a trial over a history, and the files of the trial."""
    paths, facts = create_run(folder, "job", "job-1-1"), {"host": "a", "describe_machine": dict}
    spec, begun = load_job(folder), SimpleNamespace(trial=build_trial(), paths=paths, mask=Mask(()))
    submission = SimpleNamespace(history=history, environment={}, spec=spec, **facts)
    return heartbeat.HeartbeatThread(submission, begun), paths


def test_a_heartbeat_that_failed_is_sent_again_sooner(tmp_path):
    thread, _ = beating(tmp_path, Heard(False, "it fails", False))
    assert (thread._thread.name, thread._thread.daemon) == ("zeusrun-heartbeat", True)
    waits, usual_s = [], heartbeat.HEARTBEAT_S
    thread._ended = SimpleNamespace(wait=lambda s: waits.append(s) or len(waits) == 4)
    thread._run()
    assert waits == [usual_s, usual_s, heartbeat._AGAIN_S, usual_s]


def test_a_heartbeat_carries_the_state_of_its_own_trial_and_asks_for_its_end_once(tmp_path):
    history = Heard(False, True, True)
    thread, paths = beating(tmp_path, history)
    why = ReasonCode.CANCELLED, "cancelled by 'zeusrun cancel'"
    for number, asks in ((2, None), (1, (1, *why))):
        write_live(paths, Live(build_trial(number), 1, "a", "2026-01-01T00:00:00Z"))
        thread._beat()
        assert read_cancel(paths) == asks
    ask_to_cancel(paths, at_once=True)
    thread._beat()
    assert read_cancel(paths) == (2, *why)
    assert [live and live["log"] for live in history.lives] == [None, [], []]


def test_the_power_of_a_trial_is_sent_at_its_end_if_it_was_measured(tmp_path, monkeypatch):
    for trace in (None, SimpleNamespace(to_json=dict)):
        history = Heard()
        monkeypatch.setattr(heartbeat, "read_power", lambda *_, trace=trace: trace)
        thread, _ = beating(tmp_path / str(trace is None), history)
        with thread:
            pass
        assert history.traces == ([] if trace is None else [(build_trial().uuid, {})])
