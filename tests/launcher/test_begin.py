"""How a trial is stored while other submits of the same job choose theirs."""

from __future__ import annotations

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.factories import PREEMPTED, begin, build_trial, load_job
from zeusrun.bandit.registry import create_policy
from zeusrun.choice.choose import Attempt
from zeusrun.errors import BusyError, HistoryError
from zeusrun.files.home import runs_directory
from zeusrun.history.base import Snapshot
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.launcher import begin as module
from zeusrun.launcher.context import Submission
from zeusrun.launcher.processes.command import find_torchrun
from zeusrun.launcher.rundir.layout import RunPaths, create_run, reserve_record, write_record
from zeusrun.launcher.rundir.ownership import RunLock
from zeusrun.trial import HostShare, TrialStatus


class Interrupted:
    """A history, or a policy, in whose calls something else happens first, once."""

    def __init__(self, inner, name, happen):
        self.inner, self.name, self.happen = inner, name, happen
        self.calls = 0

    def __getattr__(self, name):
        real = getattr(self.inner, name)
        if name != self.name:
            return real

        def call(*arguments, **options):
            self.calls += 1
            if self.calls == 1:
                self.happen(*arguments)
            return real(*arguments, **options)

        return call


@pytest.fixture
def history(tmp_path):
    return TinyDBHistory(tmp_path / "history", lock_timeout_s=0.05)


@pytest.fixture
def submission(tmp_path, history):
    return Submission(
        spec=load_job(tmp_path),
        history=history,
        policy=create_policy("auto"),
        devices=(),
        world_size=1,
        torchrun=find_torchrun(),
        home=tmp_path,
        environment={},
    )


@pytest.fixture
def paths(tmp_path):
    """The files of the trial that is chosen first."""
    return RunPaths(runs_directory(tmp_path, "job") / "job-1-1")


@pytest.fixture
def begun(submission):
    """Begin a trial of the submission with changes; its lease ends with the test."""
    with contextlib.ExitStack() as stack:

        def run(*made, **changes):
            done = module.begin(replace(submission, **changes), made, print)
            stack.callback(done.lease.release)
            return done

        yield run


def runs(home):
    return sorted(path.name for path in runs_directory(home, "job").iterdir())


def test_what_begins_while_a_submit_chooses_is_not_waited_for_and_the_choice_is_made_again(
    begun, submission, tmp_path
):
    other = TinyDBHistory(tmp_path / "history", lock_timeout_s=0.05)
    policy = Interrupted(submission.policy, "choose", lambda *_: begin(other, build_trial(1)))
    done = begun(policy=policy)
    assert done.trial.trial == "job-2-1"
    assert policy.calls == 2
    assert other.trials("job") == [build_trial(1), done.trial]
    assert runs(tmp_path) == ["job-2-1"]


def test_the_lease_is_held_before_a_trial_is_stored_and_given_back_after_a_conflict(
    begun, history, tmp_path, paths
):
    seen = []

    def overtake(trial):
        seen.append((trial.trial, RunLock(paths).is_held(), json.loads(paths.trial.read_text())))
        begin(history, build_trial(1, 2))

    watched = Interrupted(history, "begin", overtake)
    done = begun(history=watched)
    ((name, lives, record),) = seen
    assert (name, lives, record["status"]) == ("job-1-1", True, "DISPATCHED")
    assert done.trial.trial == "job-2-1"
    assert RunLock(done.paths).is_held()
    assert runs(tmp_path) == ["job-2-1"]


def test_a_submit_that_chose_the_same_trial_waits_until_the_other_one_has_begun_it(
    begun, history, tmp_path, paths
):
    create_run(tmp_path, "job", "job-1-1")
    lock = RunLock(paths)
    assert lock.acquire()

    # Meanwhile others may choose: their run directories may be on another machine.
    watched = Interrupted(history, "leave_turn", lambda *_: begin(history, build_trial(1)))
    done = begun(history=watched)
    assert done.trial.trial == "job-2-1"
    assert runs(tmp_path) == ["job-1-1", "job-2-1"]
    lock.release()


def test_a_submit_that_chose_the_same_trial_begins_it_if_the_other_one_does_not(
    begun, history, tmp_path, paths
):
    create_run(tmp_path, "job", "job-1-1")
    lock = RunLock(paths)
    assert lock.acquire()

    watched = Interrupted(history, "leave_turn", lambda *_: lock.release())
    done = begun(history=watched)
    assert done.trial.trial == "job-1-1"


def test_a_process_that_holds_a_lock_and_does_not_begin_is_named(
    begun, submission, tmp_path, paths, monkeypatch
):
    create_run(tmp_path, "job", "job-1-1")
    lock = RunLock(paths)
    assert lock.acquire()
    monkeypatch.setattr(module, "_LOCK_TIMEOUT_S", 0)
    with pytest.raises(BusyError, match=str(paths.lock)):
        begun()
    assert submission.history.trials("job") == []
    lock.release()


def test_a_trial_goes_on_if_the_clean_up_after_its_begin_fails(begun, history, tmp_path):
    paths = create_run(tmp_path, "job", "job-7-1")  # a submit died before it stored this trial

    def fail(_trial):
        raise HistoryError("the server does not respond")

    done = begun(history=Interrupted(history, "find", fail))
    assert history.trials("job") == [done.trial]
    assert not RunLock(paths).is_held()


def test_a_trial_is_finished_if_what_follows_its_begin_is_interrupted(begun, history, tmp_path):
    begin(history, build_trial(1))
    create_run(tmp_path, "job", "job-7-1")

    def interrupt(_trial):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begun(history=Interrupted(history, "find", interrupt))
    other, trial = history.trials("job")
    assert (other, trial.status) == (build_trial(1), TrialStatus.CANCELLED)


class Clock:
    """The ``time`` of the module: a wait takes a hundred times as long."""

    now_s = 0.0

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += 100 * seconds
        assert self.now_s < 100, "it waits for ever"


def test_a_process_that_holds_a_lock_is_waited_for_no_longer_than_half_a_minute_in_all(
    submission, tmp_path, paths, monkeypatch
):
    create_run(tmp_path, "job", "job-1-1")
    lock, clock = RunLock(paths), Clock()
    assert lock.acquire()
    monkeypatch.setattr(module, "time", clock)
    with pytest.raises(BusyError, match=str(paths.lock)):
        module.begin(submission, [], print)
    assert clock.now_s == pytest.approx(module._LOCK_TIMEOUT_S)
    lock.release()


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_signal_ends_the_wait_for_a_turn_and_what_did_not_begin_is_named(
    submission, history, attempts
):
    history.ask_turn("job")  # another submit chooses
    made = [Attempt(build_trial(), replaced=False)] * attempts
    what = "attempt 2" if made else "it"
    with pytest.raises(BusyError, match=f"^job: ended by SIGINT before {what} began"):
        module.begin(submission, made, print, [2])


def test_a_plan_takes_no_snapshot_because_a_shared_history_then_delivers(submission, history):
    def fail(*_arguments):
        raise AssertionError("a plan writes nothing")

    hosts = (HostShare("a", 1), HostShare("b", 1))
    given = replace(submission, planned=replace(submission.measure(), hosts=hosts))
    trial, _, notes = module.plan(
        replace(given, history=Interrupted(history, "snapshot", fail)), []
    )
    assert (trial.trial, notes) == ("job-1-1", ("host b starts its part",))
    assert history.trials("job") == []
    begin(history, trial)
    history.finish(trial.trial, PREEMPTED)
    assert "its run directory is gone" in module.plan(submission, history.trials("job"))[2][0]


def test_an_attempt_that_began_offline_is_followed_once_it_has_its_number(begun, history):
    offline = [build_trial(trial=f"job-offline-{n:08}", uuid=f"{n:08}" * 4) for n in (1, 2)]
    begin(history, build_trial(1, uuid=offline[0].uuid))
    made = [Attempt(each, replaced=True) for each in offline]
    assert begun(made[0]).trial.trial == "job-1-2"
    with pytest.raises(AttributeError, match=r"'NothingLeft' .* 'lease'"):
        begun(*made)


def test_what_is_chosen_while_the_history_does_not_respond_has_no_number(submission, monkeypatch):
    limits, real = [], Submission.read_moment
    read = lambda *given, limited: limits.append(limited) or real(*given, limited=limited)  # noqa: E731
    monkeypatch.setattr(Submission, "read_moment", read)
    choice = module._choose(submission, Snapshot((), "", offline=True), ())
    assert choice.trial.trial == f"job-offline-{choice.trial.uuid[:8]}"
    assert limits == [False]  # there is no limit of time


def test_what_a_submit_left_that_died_before_its_trial_was_stored_is_replaced(
    begun, tmp_path, paths
):
    create_run(tmp_path, "job", "job-1-1")
    reserve_record(paths, build_trial(1))
    (paths.checkpoints / "old").touch()
    create_run(tmp_path, "job", "job-2-3")
    done = begun()
    assert done.trial.trial == "job-1-1"
    assert list(paths.checkpoints.iterdir()) == []
    assert runs(tmp_path) == ["job-1-1"]


def test_a_number_is_not_used_twice_though_the_history_does_not_know_it(begun, tmp_path):
    ran = create_run(tmp_path, "job", "job-7-1")
    ran.torchrun_log.touch()
    assert begun().trial.trial == "job-8-1"
    assert ran.torchrun_log.exists()


def test_a_run_that_the_history_does_not_know_is_not_overwritten(begun, submission, tmp_path):
    ran = create_run(tmp_path, "job", "job-1-2")
    ran.torchrun_log.touch()
    for _ in range(2):
        with pytest.raises(HistoryError, match=r"job-1-2 cannot be written: File exists"):
            begun(Attempt(build_trial(), replaced=True))
    assert ran.torchrun_log.exists()
    assert submission.history.trials("job") == []


def test_a_link_in_the_place_of_a_run_directory_is_not_followed(begun, tmp_path):
    outside, runs = tmp_path / "outside", runs_directory(tmp_path, "job")
    outside.mkdir()
    runs.mkdir(parents=True)
    (runs / "job-1-2").symlink_to(outside)
    with pytest.raises(HistoryError, match="job-1-2 cannot be written: File exists"):
        begun(Attempt(build_trial(), replaced=True))
    assert list(outside.iterdir()) == []


def test_the_files_of_a_preempted_trial_stay_as_they_are_if_another_submit_comes_first(
    begun, history, tmp_path
):
    first = begun()
    first.paths.sidecar.write_text("of the first part")
    preempted = history.finish(first.trial.trial, PREEMPTED)
    write_record(first.paths, preempted)
    first.lease.release()

    def overtake(_trial):
        history.finish(
            preempted.trial,
            preempted.ended_as(module.TrialStatus.CANCELLED, None, "by hand", "now"),
        )

    watched = Interrupted(history, "begin", overtake)
    done = begun(history=watched)
    assert done.trial.trial == "job-2-1"
    assert json.loads(first.paths.trial.read_text())["status"] == "PREEMPTED"
    assert first.paths.sidecar.read_text() == "of the first part"
    assert not RunLock(first.paths).is_held()


def test_submits_at_once_all_get_through_with_numbers_of_their_own(
    begun, submission, tmp_path, monkeypatch
):
    monkeypatch.setattr("zeusrun.history.turns.TURN_S", 60.0)  # none ends on a slow machine
    start = threading.Barrier(10)
    policies = [Interrupted(submission.policy, "choose", lambda *_: None) for _ in range(10)]

    def submit():
        history = TinyDBHistory(tmp_path / "history")
        return begun(history=history, policy=policies[start.wait()])

    with ThreadPoolExecutor(10) as threads:
        done = [each.result() for each in [threads.submit(submit) for _ in range(10)]]
    trials = submission.history.trials("job")
    assert [policy.calls for policy in policies] == [1] * 10  # nobody chose in vain
    assert [trial.recurrence for trial in trials] == list(range(1, 11))
    assert {each.trial.trial for each in done} == {trial.trial for trial in trials}
    assert all(RunLock(each.paths).is_held() and each.paths.trial.exists() for each in done)
    assert runs(tmp_path) == sorted(trial.trial for trial in trials)
