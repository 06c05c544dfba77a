"""Histories between the files of a machine and a shared one."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("sqlalchemy")

from tests.contracts.history import outcomes
from tests.factories import DONE, PREEMPTED, REACHED, begin, build_trial, uuid_of
from tests.servers import running
from zeusrun.errors import HistoryError, UsageError
from zeusrun.history.registry import open_named
from zeusrun.history.shared.store import SharedHistory
from zeusrun.history.sql.store import SqlHistory
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.maintenance.transfer import transfer
from zeusrun.trial import TrialStatus


@pytest.fixture
def local(tmp_path):
    return TinyDBHistory(tmp_path / "home" / "history", volume_trials=3)


@pytest.fixture
def shared(tmp_path, sqlite_url):
    with closing(SqlHistory(sqlite_url)) as remote:
        yield SharedHistory(remote, tmp_path / "home" / "shared" / "server", "the server")


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def fill(local, count=10, job="job"):
    for number in range(1, count + 1):
        begin(local, build_trial(number, job=job))
        local.finish(f"{job}-{number}-1", PREEMPTED if number == 4 else REACHED)
    local.forget(f"{job}-3-1", forgotten=True)
    return local.trials(job)


def test_a_history_moves_to_the_server_and_back_without_loss(local, shared, home, tmp_path):
    trials = fill(local)
    (done,) = transfer(shared, home, None, to_shared=True)
    assert (done.job, done.copied, done.known, done.running) == ("job", 10, 0, ())
    assert shared.trials("job") == trials
    other = tmp_path / "other"
    (back,) = transfer(shared, other, None, to_shared=False)
    assert (back.copied, back.known) == (10, 0)
    assert TinyDBHistory(other / "history").trials("job") == trials


@pytest.mark.long
def test_a_history_moves_through_a_server_and_back_in_parts(home, tmp_path, sqlite_url):
    pytest.importorskip("uvicorn")
    count = 1100
    newest = build_trial(count + 1, uuid=f"{count + 1:032x}")
    old = [build_trial(n, uuid=f"{n:032x}").finish(REACHED) for n in range(1, count + 1)]
    TinyDBHistory(home / "history").add(old)
    with running(sqlite_url) as server:
        shared = open_named(home, {}, server.url)
        begin(shared, newest)  # the server has been used already
        assert transfer(shared, home, None, to_shared=True)[0].copied == count
        assert shared.snapshot("job", 1000).trials == (*old[-999:], newest)
        (back,) = transfer(shared, tmp_path / "other", None, to_shared=False)
        assert (back.copied, back.running) == (count, (newest.trial,))
        assert TinyDBHistory(tmp_path / "other" / "history").trials("job") == old
        assert begin(shared, build_trial(count + 2)) == shared.trials("job", 1)[0]
        shared.remote.close()


def test_copying_again_changes_nothing(local, shared, home):
    trials = fill(local)
    transfer(shared, home, None, to_shared=True)
    version = shared.snapshot("job").version
    (done,) = transfer(shared, home, "job", to_shared=True)
    assert (done.copied, done.known) == (0, 10)
    assert shared.snapshot("job").version == version
    before = local.snapshot("job").version
    (back,) = transfer(shared, home, "job", to_shared=False)
    assert (back.copied, back.known) == (0, 10)
    assert local.snapshot("job") == (tuple(trials), before, False)


def test_what_is_new_is_added(local, shared, home):
    fill(local, 5)
    transfer(shared, home, None, to_shared=True)
    begin(local, build_trial(6))
    local.finish("job-6-1", DONE)
    (done,) = transfer(shared, home, None, to_shared=True)
    assert (done.copied, done.known) == (1, 5)
    assert shared.trials("job") == local.trials("job")
    begin(shared, build_trial(7, uuid="7" * 32))
    shared.finish("job-7-1", DONE)
    (back,) = transfer(shared, home, None, to_shared=False)
    assert (back.copied, back.known) == (1, 6)
    assert local.trials("job") == shared.trials("job")


def test_what_runs_is_left_out_and_named(local, shared, home):
    fill(local, 3)
    begin(local, build_trial(4))
    (done,) = transfer(shared, home, None, to_shared=True)
    assert done.running == ("job-4-1",)
    assert done.describe() == (
        f"job: 3 runs copied to {shared.name}; left out because it runs: job-4-1; copy again after "
        "the end"
    )
    assert len(shared.trials("job")) == 3
    local.finish("job-4-1", DONE)
    assert transfer(shared, home, None, to_shared=True)[0].copied == 1


def test_a_late_result_of_the_server_replaces_a_lost_run_here(local, shared, home):
    trial = begin(local, build_trial(1, uuid="1" * 32))
    lost = trial.ended_as(TrialStatus.LOST, None, "no heartbeat", "2025-06-01T12:00:00Z")
    for number in range(2, 9):  # so that it is in a volume
        begin(local, build_trial(number))
        local.finish(f"job-{number}-1", DONE)
    local.finish("job-1-1", lost)
    shared.add([trial.finish(REACHED)])
    transfer(shared, home, None, to_shared=False)
    assert local.find("job-1-1") == trial.finish(REACHED)
    assert len(local.trials("job")) == 8


def test_a_run_that_was_continued_after_a_copy_is_copied_again(local, shared, home):
    trial = begin(local, build_trial(1))
    preempted = local.finish(trial.trial, PREEMPTED)
    transfer(shared, home, None, to_shared=True)
    begin(shared, preempted.resume("2025-06-02T12:00:00Z"))
    ended = shared.finish("job-1-1", REACHED)
    (back,) = transfer(shared, home, None, to_shared=False)
    assert (back.copied, local.trials("job")) == (1, [ended])
    (again,) = transfer(shared, home, None, to_shared=True)
    assert (again.known, shared.trials("job")) == (1, [ended])


def test_two_histories_of_a_job_are_not_mixed(local, shared, home):
    fill(local, 3)
    other = replace(build_trial(2, uuid="e" * 32), global_batch_size=64).finish(REACHED)
    shared.add([other])
    for to_shared in (True, False):
        with pytest.raises(HistoryError, match=r"other runs called job-2-1, so nothing of job"):
            transfer(shared, home, None, to_shared=to_shared)
    assert shared.trials("job") == [other]
    assert len(local.trials("job")) == 3


def test_a_run_that_is_refused_is_named(local, shared, home):
    shared.add([build_trial(1, job="other", uuid=uuid_of("job-1-1")).finish(REACHED)])
    fill(local, 3)
    with pytest.raises(HistoryError, match=r"refuses a run of job: .*another trial job-1-1"):
        transfer(shared, home, "job", to_shared=True)
    lost = [build_trial(number).finish(DONE) for number in (3, 4)]
    lost[1] = replace(lost[1], attempt=0)
    with pytest.raises(HistoryError, match=r"refuses a run of job: trial 'job-4-1'"):
        shared.restore("job", lost)
    assert [each.trial for each in shared.trials("job")] == ["job-3-1"]
    other = build_trial(5, uuid="e" * 32).finish(DONE)
    shared.add([other])
    lost = replace(other, uuid="f" * 32)  # its number was given again after a backup was restored
    for count in (1, 0):
        assert len(shared.restore("job", [lost]).found) == count
    assert shared.trials("job")[-2:] == [other, replace(lost, trial="job-6-1", recurrence=6)]


def test_only_a_shared_history_takes_part(local, home):
    fill(local, 3)
    for to_shared in (True, False):
        with pytest.raises(UsageError, match="no shared history is in use"):
            transfer(local, home, None, to_shared=to_shared)


def test_an_unknown_job_is_named(local, shared, home):
    with pytest.raises(UsageError, match="files of this machine have no runs to import"):
        transfer(shared, home, "job", to_shared=True)
    fill(local, 3)
    with pytest.raises(UsageError, match="no job called 'jib'"):
        transfer(shared, home, "jib", to_shared=True)


def test_any_history_survives_the_way_there_and_back(tmp_path_factory, empty_sqlite):
    ends = st.lists(st.tuples(outcomes, st.booleans()), min_size=1, max_size=8)

    @settings(max_examples=8, deadline=None)
    @given(ends=ends)
    def check(ends):
        folder = tmp_path_factory.mktemp("transfer")
        shutil.copy(empty_sqlite, folder / "history.db")
        local = TinyDBHistory(folder / "history", volume_trials=2)
        for number, (outcome, forgotten) in enumerate(ends, 1):
            trial = begin(local, build_trial(number))
            local.finish(trial.trial, outcome)
            local.forget(trial.trial, forgotten=forgotten)
        with closing(SqlHistory(f"sqlite:///{folder}/history.db")) as remote:
            shared = SharedHistory(remote, folder / "shared", "the server")
            transfer(shared, folder, None, to_shared=True)
            transfer(shared, folder / "other", None, to_shared=False)
        assert TinyDBHistory(folder / "other" / "history").trials("job") == local.trials("job")

    check()


def test_the_verb_copies_there_and_back(cli, record, sqlite_url, monkeypatch, zeusrun):
    record(1)
    record(2, None)
    code, _, err = cli("history", "--import")
    assert code == 2
    assert "no shared history is in use; run `zeusrun connect`, set ZEUSRUN_HISTORY" in err
    with running(sqlite_url) as server:
        monkeypatch.setenv("ZEUSRUN_HISTORY", server.url)
        code, out, _ = cli("history", "--import")
        assert code == 0
        copied = f"job: 1 run copied to {server.url}; left out because it runs: job-2-1"
        assert out.startswith(copied)
        assert [each["trial"] for each in json.loads(cli("history", "--json")[1])] == ["job-1-1"]
        assert json.loads(cli("history", "job", "--export", "--json")[1])[0]["known"] == 1
        assert cli("history", "--import", "--export")[0] == 2
        assert cli("history", "--import", "--last", "3")[0] == 2
