"""A shared history whose server does not respond, loses answers, or comes back."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from unittest import mock

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from tests.contracts.history import begin
from tests.contracts.shared import offline_trial, with_uuid
from tests.databases import expire_lease, lease_held
from tests.factories import PREEMPTED, REACHED
from tests.servers import HistoryServer, Proxy, running
from zeusrun.errors import BusyError, HistoryError
from zeusrun.history.base import OfflineError, RefusedError, UnavailableError, UnknownTrialError
from zeusrun.history.http.client import HttpHistory
from zeusrun.history.shared import spool
from zeusrun.history.shared.store import SharedHistory
from zeusrun.trial import Outcome, TrialStatus

LATER = "2025-06-02T12:00:00Z"
LOST = Outcome(TrialStatus.LOST, "its zeusrun died", LATER)


@pytest.fixture(scope="module")
def any_server(empty_sqlite):
    with (
        mock.patch("zeusrun.server.app._EXPIRE_S", 3600.0),  # tests let leases expire themselves
        running(f"sqlite:///{empty_sqlite}") as server,
    ):
        yield server


@pytest.fixture
def server(any_server, sqlite_url):
    any_server.use(sqlite_url)
    yield any_server
    any_server.rest()


@pytest.fixture
def database(server):
    return server.history


@pytest.fixture
def proxy(server):
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    """Give up after a moment; the pauses between tries are those of a user."""
    monkeypatch.setattr(spool, "READ_S", 0.05)
    monkeypatch.setattr("zeusrun.history.shared.store.PATIENCE_S", 0.05)
    monkeypatch.setattr("zeusrun.history.http.client._SHORT_S", 1.0)
    monkeypatch.setattr(spool, "_PAUSE_READS_S", 0.0)


@pytest.fixture
def told():
    return []


@pytest.fixture
def open_shared(proxy, tmp_path, told):
    opened = []

    def open_(**options):
        remote = HttpHistory(proxy.url)
        opened.append(remote)
        options = {"wait_s": 0.05, "show": told.append, **options}
        return SharedHistory(remote, tmp_path / "shared", proxy.url, **options)

    yield open_
    for each in opened:
        each.close()


@pytest.fixture
def history(open_shared):
    return open_shared()


def after(seconds, action):
    threading.Timer(seconds, action).start()


# A server that comes back in time.


def test_a_submit_waits_for_its_server_and_says_so(open_shared, proxy, told, monkeypatch):
    monkeypatch.setattr(spool, "_LONG_S", 5.0)
    begin(open_shared(), with_uuid())
    history = open_shared(wait_s=60.0, pause=lambda _: setattr(proxy, "mode", "pass"))
    proxy.mode = "refuse"
    assert history.unfinished("digits") == []  # as submit looks for lost trials
    trial = begin(history, with_uuid(2))
    assert history.find(trial.uuid) == trial
    assert told  # once for each way in which it does not respond
    assert all("does not respond" in text for text in told)
    assert all("waiting for it, for up to 60 s" in text for text in told)
    assert len(set(told)) == len(told)


@pytest.mark.parametrize("overloaded", [False, True])
def test_the_pauses_between_two_tries_grow_and_are_drawn(open_shared, proxy, overloaded):
    proxy.mode, pauses = "refuse", []

    def refuse(*_):
        error = UnavailableError("too many requests")
        error.retry_after_s = 2.0
        raise error

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 40:
            raise BusyError("ended by SIGINT")

    history = open_shared(wait_s=1000.0, pause=pause)
    if overloaded:
        history.remote.changes = refuse
    with pytest.raises(BusyError):
        history.snapshot("digits")
    after_s = 2.0 if overloaded else 0.0
    for number, seconds in enumerate(pauses):
        assert after_s <= seconds <= after_s + min(10.0, 0.25 * 2**number)
    assert len({round(seconds, 6) for seconds in pauses}) == 40
    assert max(pauses) > 3


def test_a_submit_gives_up_after_its_wait(history, proxy):
    proxy.mode = "refuse"
    with pytest.raises(UnavailableError, match=r"tried for 0.05 s.*history.offline"):
        history.snapshot("digits")


# Answers that are lost.


@pytest.mark.parametrize("mode", ["lose", "hang"])
def test_a_begin_whose_answer_was_lost_is_no_second_trial(open_shared, proxy, database, mode):
    history = open_shared(wait_s=30.0)
    version, trial = history.snapshot("digits").version, with_uuid()
    proxy.mode = mode
    after(0.2, lambda: (setattr(proxy, "mode", "pass"), proxy.cut()))
    assert history.begin(trial, after=version) == trial
    assert database.trials("digits") == [trial]


def test_a_finish_whose_answer_was_lost_is_recorded_once(history, proxy, database, told):
    trial = begin(history, with_uuid())
    proxy.mode = "lose"
    assert history.finish(trial.trial, REACHED) == trial.finish(REACHED)
    assert database.trials("digits") == [trial.finish(REACHED)]
    version = database.snapshot("digits").version
    assert "waits in" in told[-1]
    proxy.mode = "pass"
    assert history.snapshot("digits").trials == (trial.finish(REACHED),)
    assert not history.spool
    assert database.snapshot("digits").version == version


def test_a_trial_whose_begin_was_lost_for_good_is_withdrawn(history, open_shared, proxy, database):
    version, trial = history.snapshot("digits").version, with_uuid()
    proxy.mode = "lose"
    with pytest.raises(UnavailableError):
        history.begin(trial, after=version)
    assert database.trials("digits") == [trial]
    proxy.mode = "pass"
    (withdrawn,) = open_shared().snapshot("digits").trials
    assert withdrawn.status is TrialStatus.CANCELLED
    assert "could not be begun" in withdrawn.reason


def test_a_trial_that_never_began_is_not_withdrawn(history, open_shared, proxy, database):
    version = history.snapshot("digits").version
    proxy.mode = "refuse"
    with pytest.raises(UnavailableError):
        history.begin(with_uuid(), after=version)
    proxy.mode = "pass"
    assert open_shared().snapshot("digits").trials == ()
    assert not history.spool


def test_a_refused_trial_is_not_withdrawn(history, open_shared, monkeypatch):
    def begin(*_, **__):
        raise RefusedError("this token may only read")

    history = open_shared(wait_s=5.0)
    version = history.snapshot("digits").version
    monkeypatch.setattr(history.remote, "begin", begin)
    with pytest.raises(RefusedError):
        history.begin(with_uuid(), after=version)
    assert not history.spool


def test_a_preempted_trial_whose_resumption_was_lost_is_preempted_still(
    history, open_shared, proxy, database
):
    trial = begin(history, with_uuid())
    preempted = history.finish(trial.trial, PREEMPTED)
    version = history.snapshot("digits").version
    proxy.mode = "lose"
    with pytest.raises(UnavailableError):
        history.begin(preempted.resume(LATER), after=version)
    assert database.unfinished("digits")
    proxy.mode = "pass"
    (found,) = open_shared().snapshot("digits").trials
    assert (found.status, found.preemptions, found.curve) == (
        TrialStatus.PREEMPTED,
        1,
        preempted.curve,
    )


# Results that wait.


def test_results_wait_and_are_delivered_in_order(history, proxy, database):
    trials = [begin(history, with_uuid(number)) for number in (1, 2, 3)]
    proxy.mode = "refuse"
    finished = [history.finish(each.trial, REACHED) for each in trials]
    assert finished == [each.finish(REACHED) for each in trials]
    assert len(history.spool.entries()) == 3
    proxy.mode = "pass"
    history.deliver()
    assert database.trials("digits") == finished
    incarnation = database.identify()[0]
    changed = [list(database.changes("digits", f"{incarnation}:{n}").trials) for n in (4, 5)]
    assert changed == [finished[1:], finished[2:]]
    assert not history.spool


def test_a_delivery_that_died_before_it_was_noted_is_made_again(history, proxy, database):
    trial = begin(history, with_uuid())
    proxy.mode = "refuse"
    history.finish(trial.trial, REACHED)
    (entry,) = history.spool.entries()
    content = entry.path.read_bytes()
    proxy.mode = "pass"
    history.deliver()
    version = database.snapshot("digits").version
    entry.path.write_bytes(content)  # as if the process had died just before it removed this
    history.deliver()
    assert database.snapshot("digits") == ((trial.finish(REACHED),), version, False)
    assert not history.spool


def test_an_old_result_does_not_end_a_trial_that_has_gone_on(history, proxy, database):
    trial = begin(history, with_uuid())
    proxy.mode = "refuse"
    history.finish(trial.trial, PREEMPTED)
    (entry,) = history.spool.entries()
    content = entry.path.read_bytes()
    proxy.mode = "pass"
    preempted = history.snapshot("digits").trials[0]
    resumed = begin(history, preempted.resume(LATER))
    entry.path.write_bytes(content)
    history.deliver()
    assert database.trials("digits") == [resumed]


def test_a_refused_result_is_set_aside_and_blocks_nothing(history, proxy, database, told):
    first, second = (begin(history, with_uuid(number)) for number in (1, 2))
    proxy.mode = "refuse"
    history.finish(first.trial, REACHED)
    history.finish(second.trial, REACHED)
    database.finish(first.trial, replace(REACHED, status=TrialStatus.MISSED))
    proxy.mode = "pass"
    history.deliver()
    assert [each.status.value for each in database.trials("digits")] == ["MISSED", "REACHED"]
    assert not history.spool
    (path,) = history.spool.list_refused()
    assert f"the result of {first.trial} is refused, and kept in {path}" in told[-1]
    assert "never changes" in told[-1]


def test_a_late_result_replaces_lost(history, proxy, database):
    trial = begin(history, with_uuid())
    proxy.mode = "refuse"
    expire_lease(database, trial.trial)
    assert database.unfinished("digits") == []
    history.finish(trial.trial, REACHED)
    proxy.mode = "pass"
    assert history.snapshot("digits").trials == (trial.finish(REACHED),)


def test_a_late_loss_does_not_replace_a_result(history, proxy, database):
    trial = begin(history, with_uuid())
    history.trials("digits")
    proxy.mode = "refuse"
    assert history.finish(trial.trial, LOST).status is TrialStatus.LOST
    finished = database.finish(trial.trial, REACHED)
    proxy.mode = "pass"
    history.deliver()
    assert database.trials("digits") == [finished]
    assert (bool(history.spool), history.spool.list_refused()) == (False, [])


@pytest.fixture
def lost(history, database):
    """A trial that began, and that the server lost with the restoration of an older backup."""
    trial = begin(history, with_uuid())
    with database.engine.begin() as connection:
        for table in ("leases", "trials"):
            connection.exec_driver_sql(f"DELETE FROM {table}")
    return trial


@pytest.mark.parametrize("away", [False, True])
def test_a_result_survives_a_server_that_has_lost_the_trial(
    history, database, lost, away, monkeypatch
):
    def fail(_):
        raise UnavailableError("the server does not respond")

    with monkeypatch.context() as patch:
        if away:
            patch.setattr(history.remote, "add", fail)
        assert history.finish(lost.trial, REACHED) == lost.finish(REACHED)
    history.deliver()
    assert database.trials("digits") == [lost.finish(REACHED)]


def test_a_trial_whose_number_another_one_got_after_a_restoration_is_not_taken_for_it(
    history, database, lost, told
):
    other = begin(database, with_uuid())
    assert other.trial == lost.trial
    expire_lease(database, other.trial)
    with pytest.raises(UnknownTrialError):
        history.renew(lost.trial)
    assert database.unfinished("digits") == []
    finished = replace(lost.finish(REACHED), trial="digits-2-1", recurrence=2)
    entry = history.spool.put("finish", lost.finish(REACHED)).read_bytes()
    assert history.finish(lost.trial, REACHED) == finished
    (history.spool.folder / "00000001.json").write_bytes(entry)  # its answer was lost
    history.deliver()
    assert [each.status.value for each in database.trials("digits")] == ["LOST", "REACHED"]
    assert database.trials("digits")[1] == history.find(lost.trial) == finished
    (text,) = told
    assert text.startswith("digits-1-1 is now digits-2-1")


def test_a_token_that_has_expired_loses_no_result(history, monkeypatch, told):
    trial = begin(history, with_uuid())
    refused = HistoryError("the server refuses: the token has expired")

    def refuse(*_):
        raise refused

    with monkeypatch.context() as patch:
        patch.setattr(history.remote, "finish", refuse)
        assert history.finish(trial.trial, REACHED).status is TrialStatus.REACHED
        history.deliver()
        assert history.spool
    assert "expired" in told[0]
    history.deliver()
    assert history.find(trial.trial) == trial.finish(REACHED)


def test_a_trace_is_sent_at_once_or_not_at_all(history, proxy, database):
    first, second = begin(history, with_uuid(1)), begin(history, with_uuid(2))
    history.finish(first.trial, REACHED)
    history.keep_trace(first.uuid, {"spans": [1]})
    assert database.trace(first.trial) == {"spans": [1]}
    proxy.mode = "refuse"
    history.finish(second.trial, REACHED)
    with pytest.raises(UnavailableError):
        history.keep_trace(second.uuid, {"spans": [1]})
    assert [each.kind for each in history.spool.entries()] == ["finish"]


def test_a_heartbeat_delivers_what_waits(history, proxy, database):
    first, second = (begin(history, with_uuid(number)) for number in (1, 2))
    proxy.mode = "refuse"
    history.finish(first.trial, REACHED)
    with pytest.raises(UnavailableError):
        history.renew(second.trial)
    proxy.mode = "pass"
    history.renew(second.trial, {"epoch": 3})
    assert database.trials("digits") == [first.finish(REACHED), second]
    assert database.live(second.trial) == {"epoch": 3}


# Reading while the server does not respond.


def test_what_is_known_here_is_read_from_the_copy(history, open_shared, proxy, told):
    trials = [begin(history, with_uuid(number)) for number in (1, 2)]
    history.trials("digits")
    proxy.mode = "refuse"
    history = open_shared()
    assert history.trials("digits") == trials
    assert history.trials("digits", 1) == trials[1:]
    assert (history.count("digits"), history.jobs()) == (2, ["digits"])
    assert history.find("digits-1-1") == history.find(trials[0].uuid) == trials[0]
    assert history.unfinished("digits") == trials
    history.finish("digits-1-1", REACHED)
    assert history.trials("digits") == [trials[0].finish(REACHED), trials[1]]
    assert history.find("digits-1-1") == trials[0].finish(REACHED)
    assert history.unfinished("digits") == trials[1:]
    assert history.count("digits") == 2
    on_copy, on_result = told
    assert re.search(r"local copy of digits as it was at \d{4}-\d\d-\d\d \d\d:\d\d$", on_copy)
    assert "the result of digits-1-1 waits" in on_result
    with pytest.raises(UnavailableError):
        history.forget("digits-1-1", forgotten=True)


def test_that_a_copy_is_read_is_told_once(history, open_shared, proxy, told):
    for job in ("letters", "digits"):
        begin(history, with_uuid(job=job))
        history.trials(job)
    proxy.mode = "refuse"
    reader = open_shared()
    for job in reader.jobs():
        reader.trials(job)
    assert len(told) == 1
    assert "local copy as it was at" in told[0]


def test_of_several_copies_the_age_is_that_of_the_oldest(
    history, open_shared, proxy, told, monkeypatch
):
    for job, now in (("digits", 1.6e9), ("letters", 1.7e9)):
        begin(history, with_uuid(job=job))
        monkeypatch.setattr("zeusrun.history.shared.copy.read_clock", lambda now=now: now)
        history.trials(job)
    proxy.mode = "refuse"
    open_shared().jobs()
    assert "as it was at 2020-09-13" in told[0]


def test_without_a_copy_the_server_is_missed(history, proxy):
    proxy.mode = "refuse"
    for read in (
        history.jobs,
        lambda: history.trials("digits"),
        lambda: history.count("digits"),
        lambda: history.unfinished("digits"),
        lambda: history.find("digits-1-1"),
    ):
        with pytest.raises(UnavailableError):
            read()


def test_a_server_that_was_away_just_now_is_not_waited_for_again(history, proxy, monkeypatch):
    begin(history, with_uuid())
    history.trials("digits")
    monkeypatch.setattr(spool, "_PAUSE_READS_S", 60.0)
    monkeypatch.setattr(spool, "READ_S", 0.3)
    proxy.mode = "refuse"
    history.trials("digits")
    begun_t = time.monotonic()
    for _ in range(20):
        history.trials("digits")
    assert time.monotonic() - begun_t < 3


def test_a_damaged_copy_is_no_reason_to_fail(history, tmp_path, told):
    trial = begin(history, with_uuid())
    history.trials("digits")
    (tmp_path / "shared" / "copy.db").write_bytes(b"rubbish" * 1000)
    assert history.trials("digits") == [trial]
    assert "damaged" in told[0]
    assert history.trials("digits") == [trial]


# Trials that begin offline.


@pytest.fixture
def offline(open_shared):
    return open_shared(offline="cheapest")


def test_a_trial_that_begins_offline_is_numbered_on_delivery(history, offline, proxy, database):
    known = begin(history, with_uuid()).finish(REACHED)
    history.finish(known.trial, REACHED)
    history.trials("digits")
    proxy.mode = "refuse"
    found = offline.snapshot("digits", 10)
    assert (found.trials, found.offline) == ((known,), True)
    trial = offline_trial()
    assert offline.begin(trial, after=found.version) == trial
    waiting = replace(trial, recurrence=2)
    assert offline.unfinished("digits") == [waiting]
    assert offline.snapshot("digits").trials == (known, waiting)
    finished = offline.finish(trial.trial, REACHED)
    assert finished == trial.finish(REACHED)
    assert offline.find(trial.trial) == finished
    proxy.mode = "pass"
    numbered = replace(finished, trial="digits-2-1", recurrence=2)
    assert offline.snapshot("digits").trials == (known, numbered)
    assert database.trials("digits") == [known, numbered]
    assert offline.find(trial.trial) == offline.find(trial.uuid) == numbered


def test_a_trial_that_began_offline_is_numbered_while_it_runs(offline, proxy, database):
    proxy.mode = "refuse"
    trial = offline_trial()
    offline.begin(trial, after=offline.snapshot("digits").version)
    with pytest.raises(UnavailableError):
        offline.renew(trial.trial)
    proxy.mode = "pass"
    offline.renew(trial.trial, {"epoch": 1})
    assert database.unfinished("digits")[0].trial == "digits-1-1"
    assert lease_held(database, trial.uuid)
    finished = offline.finish(trial.trial, REACHED)
    assert (finished.trial, finished.status) == ("digits-1-1", TrialStatus.REACHED)


def test_a_trial_that_began_offline_is_delivered_at_its_end(offline, proxy, database):
    proxy.mode = "refuse"
    trials = [offline_trial(), offline_trial(), offline_trial(job="other")]
    for trial in trials:
        offline.begin(trial, after="")
    for trial in trials[1:]:
        offline.finish(trial.trial, REACHED)
    proxy.mode = "pass"
    finished = offline.finish(trials[0].trial, REACHED)
    assert finished.trial == "digits-1-1"
    assert [each.uuid for each in database.trials("digits")] == [each.uuid for each in trials[:2]]
    assert [each.trial for each in database.trials("other")] == ["other-1-1"]


def test_a_server_that_goes_away_in_mid_submit_lets_it_choose_again_offline(
    offline, proxy, database
):
    version, trial = offline.snapshot("digits").version, with_uuid()
    proxy.mode = "lose"
    with pytest.raises(OfflineError):
        offline.begin(trial, after=version)
    proxy.mode = "pass"  # it can be read, but perhaps not written
    assert offline.snapshot("digits").offline
    own = offline.begin(offline_trial(), after="")
    offline.renew(own.trial)
    found = offline.snapshot("digits")
    assert not found.offline
    assert [each.status.value for each in found.trials] == ["CANCELLED", "DISPATCHED"]


def test_what_waits_counts_for_the_next_choice(offline, proxy):
    proxy.mode = "refuse"
    trial = offline_trial()
    offline.begin(trial, after=offline.snapshot("digits").version)
    offline.finish(trial.trial, REACHED)
    assert offline.snapshot("digits", 1).trials == (trial.finish(REACHED),)
    assert offline.snapshot("other").trials == ()


def test_threads_and_processes_number_each_trial_once(open_shared, proxy, database):
    proxy.mode = "refuse"
    trials = [offline_trial() for _ in range(6)]
    for trial in trials:
        history = open_shared(offline="cheapest")
        history.begin(trial, after="")
        history.finish(trial.trial, REACHED)
    proxy.mode = "pass"
    threads = [threading.Thread(target=open_shared().deliver) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.uuid for each in database.trials("digits")] == [each.uuid for each in trials]
    assert [each.recurrence for each in database.trials("digits")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.long
def test_a_server_that_is_killed_and_started_again_and_again_loses_nothing(
    open_shared, proxy, sqlite_url
):
    """Five launchers begin and finish trials while the server stops and starts."""
    done = threading.Event()
    server = HistoryServer(sqlite_url)  # not the one of all tests
    server.start()
    proxy.target = server.port

    def restart():
        lasts_s = 0.3
        while not done.wait(lasts_s):
            server.stop()
            proxy.cut()
            done.wait(0.1)
            began_t = time.monotonic()
            server.start()
            lasts_s = max(0.3, 2 * (time.monotonic() - began_t))  # a busy machine needs longer

    thread = threading.Thread(target=restart)
    thread.start()
    try:
        ended = []

        def submit():
            history = open_shared(wait_s=120.0)
            for _ in range(5):
                trial = begin(history, lambda trials: with_uuid(len(trials) + 1))
                ended.append(history.finish(trial.trial, REACHED))

        launchers = [threading.Thread(target=submit) for _ in range(5)]
        for each in launchers:
            each.start()
        for each in launchers:
            each.join()
        done.set()
        thread.join()
        stored = open_shared(wait_s=30.0).snapshot("digits").trials
    finally:
        done.set()
        thread.join()
        server.stop()
    assert {each.uuid for each in stored if each.status is TrialStatus.REACHED} == {
        each.uuid for each in ended
    }
    assert [each.recurrence for each in stored] == list(range(1, len(stored) + 1))
