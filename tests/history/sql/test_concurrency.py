"""Several processes, threads and connections at one database; interrupted and lost connections."""

from __future__ import annotations

import multiprocessing
import threading
import uuid
from contextlib import suppress

import pytest

pytest.importorskip("sqlalchemy")

import sqlalchemy as sa

from tests.contracts.history import begin, build_trial
from tests.contracts.shared import offline_trial, with_uuid
from tests.databases import expire_lease, lease_held, opened
from tests.factories import REACHED
from zeusrun.history.base import Conflict, UnavailableError
from zeusrun.history.rules import place_of
from zeusrun.history.sql.engine import write, writing
from zeusrun.history.sql.rows import LockedJob
from zeusrun.history.sql.store import SqlHistory
from zeusrun.trial import TrialStatus

PROCESSES = 4


def at_once(*calls):
    """Call functions in threads that start together; raise what one of them raises."""
    start, errors = threading.Barrier(len(calls)), []

    def run(call):
        start.wait()
        try:
            call()
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


def submit(url, job, count, start):
    """Begin and finish trials, as a launcher on another machine does."""
    history = SqlHistory(url)
    start.wait()
    for _ in range(count):
        while True:
            after = history.changes(job, None, 1)
            number = after.trials[-1].recurrence + 1 if after.trials else 1
            trial = build_trial(number, job=job, uuid=uuid.uuid4().hex)
            with suppress(Conflict):
                history.begin(trial, after=after.version)
                break
        history.renew(trial.uuid)
        history.finish(trial.trial, REACHED)
        history.add([offline_trial(job).finish(REACHED)])
    history.close()


class ConcurrencyContract:
    """Tests over the ``url`` of a database with tables and nothing in them."""

    count = 3

    @pytest.fixture
    def history(self, url):
        yield from opened(url)

    def test_processes_that_begin_at_once_get_numbers_of_their_own(self, url, history):
        context = multiprocessing.get_context("fork")
        start = context.Event()  # a barrier would leave shared memory
        jobs = ["digits", "digits", "digits", "other"]
        children = [
            context.Process(target=submit, args=(url, job, self.count, start)) for job in jobs
        ]
        for child in children:
            child.start()
        start.set()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0] * PROCESSES
        for job, processes in (("digits", 3), ("other", 1)):
            found = history.changes(job, None)
            total = processes * self.count * 2
            assert [trial.recurrence for trial in found.trials] == list(range(1, total + 1))
            assert len({trial.uuid for trial in found.trials}) == total
            assert {trial.status for trial in found.trials} == {TrialStatus.REACHED}
            assert int(found.version.partition(":")[2]) == processes * self.count * 3
            assert (found.total, history.unfinished(job)) == (total, [])

    def test_a_snapshot_is_of_one_moment(self, history):
        """Each trial that runs is one change, each that has ended is two."""
        begin(history)
        done = threading.Event()

        def go_on():
            try:
                for _ in range(5 * self.count):
                    history.finish(begin(history).trial, REACHED)
            finally:
                done.set()

        def read():
            after = None
            copy = {}
            while not done.is_set():
                found = history.changes("digits", after)
                copy |= {place_of(trial): trial for trial in found.trials}
                after = found.version
                ended = sum(trial.status.finished for trial in copy.values())
                assert after.endswith(f":{len(copy) + ended}")
                assert found.total == len(copy)

        at_once(go_on, read)

    def test_a_lease_is_renewed_or_its_trial_is_lost(self, history):
        for number in range(1, 2 * self.count + 1):
            trial = begin(history, with_uuid(number))
            expire_lease(history, trial.trial)
            at_once(lambda: history.renew(trial.uuid, {}), history.expire, history.expire)  # noqa: B023
            known = history.find(trial.trial)
            assert lease_held(history, trial.trial) == (known.status is TrialStatus.DISPATCHED)

    def test_a_result_is_never_lost_to_an_expired_lease(self, history):
        for number in range(1, 2 * self.count + 1):
            trial = begin(history, with_uuid(number))
            expire_lease(history, trial.trial)
            at_once(history.expire, lambda: history.finish(trial.uuid, REACHED))  # noqa: B023
            assert history.find(trial.uuid) == trial.finish(REACHED)

    def test_the_same_begin_twice_at_once_is_one_trial(self, history):
        trial, version = with_uuid(), history.snapshot("digits").version
        at_once(*[lambda: history.begin(trial, after=version)] * 4)
        assert history.trials("digits") == [trial]

    def test_the_same_delivery_twice_at_once_is_one_trial(self, history):
        trials = [offline_trial(), offline_trial("other")]
        at_once(*[lambda: history.add(trials), lambda: history.add(trials[::-1])] * 2)
        assert len(history.trials("digits")) == len(history.trials("other")) == 1

    def test_a_uuid_of_two_jobs_at_once_goes_to_one_of_them(self, history):
        name = uuid.uuid4().hex
        refused = []

        def deliver(job):
            try:
                history.add([build_trial(1, job=job, uuid=name)])
            except ValueError as error:
                refused.append(str(error))

        at_once(lambda: deliver("digits"), lambda: deliver("other"))
        assert len(refused) == 1
        assert len(history.jobs()) == 1

    def test_what_machines_report_at_once_is_kept(self, history):
        at_once(
            *[lambda: history.report_host("node-1", {})] * 4,
            *[lambda: history.keep_settings("digits", "name: digits")] * 2,
        )
        assert [host for host, _, _ in history.hosts()] == ["node-1"]
        assert history.settings("digits") == "name: digits"


class ServerContract(ConcurrencyContract):
    """Tests of a database that is a server."""

    def test_of_two_writes_that_wait_for_each_other_both_are_done(self, history):
        both, tries, held = threading.Barrier(2), [], []

        def lock(connection, names):
            tries.append(names)
            LockedJob(connection, names[0])
            if names not in held:
                held.append(names)
                both.wait()
            LockedJob(connection, names[1])

        begin(history)
        begin(history, build_trial(job="other"))
        at_once(
            lambda: write(history.engine, lambda c: lock(c, ("digits", "other"))),
            lambda: write(history.engine, lambda c: lock(c, ("other", "digits"))),
        )
        assert len(tries) > 2  # what is undone can meet the other one again

    def test_a_lost_connection_is_opened_again(self, history):
        begin(history)
        self.kill_connections(history)
        assert len(history.trials("digits")) == 1
        self.kill_connections(history)
        begin(history)

    def test_a_connection_that_is_lost_while_writing_changes_nothing(self, history):
        def cut_off(connection):
            LockedJob(connection, "digits").store(build_trial(), None)
            self.kill_connections(history)
            LockedJob(connection, "digits")

        with pytest.raises(UnavailableError, match="does not respond"):
            write(history.engine, cut_off)
        assert history.trials("digits") == []
        begin(history)


class TestSqlite(ConcurrencyContract):
    @pytest.fixture
    def url(self, sqlite_url):
        return sqlite_url

    def test_a_writer_that_is_killed_leaves_the_file_usable(self, url, history):
        context = multiprocessing.get_context("fork")
        locked = context.Event()

        def hold():
            own = SqlHistory(url)
            with writing(own.engine) as connection:
                LockedJob(connection, "digits").store(build_trial(), None)
                locked.set()
                threading.Event().wait()

        child = context.Process(target=hold)
        child.start()
        locked.wait()
        child.kill()
        child.join()
        assert history.trials("digits") == []
        begin(history)


class TestPostgres(ServerContract):
    @pytest.fixture
    def url(self, postgres_url):
        return postgres_url

    def kill_connections(self, history):
        own = sa.text(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        with writing_once(history) as connection:
            connection.execute(own)


def writing_once(history):
    """Open a transaction over a connection that is not of the pool."""
    engine = sa.create_engine(history.engine.url, poolclass=sa.NullPool)
    return engine.begin()


@pytest.mark.long
class TestManyOnSqlite(TestSqlite):
    count = 20


@pytest.mark.long
class TestManyOnPostgres(TestPostgres):
    count = 20
