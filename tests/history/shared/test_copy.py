"""The local copy of a shared history."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tests.factories import REACHED, build_trial
from zeusrun.history.base import Changes
from zeusrun.history.rules import offline_name
from zeusrun.history.shared.copy import CopyError, LocalCopy


class Remote:
    """A job's trials as a server has them, and what a copy has asked for."""

    def __init__(self, count=0, incarnation="a"):
        self.trials = {}
        self.changed = {}
        self.incarnation = incarnation
        self.changes = 0
        self.asked = []
        for _ in range(count):
            self.begin()

    def begin(self, **values):
        number = 3 * len(self.trials) + 7
        self.store(number, build_trial(len(self.trials) + 1, **values))
        return number

    def store(self, number, trial):
        self.changes += 1
        self.trials[number], self.changed[number] = trial, self.changes

    def fetch(self, after, last):
        self.asked.append((after, last))
        known, _, since = (after or "").partition(":")
        whole = known != self.incarnation
        numbers = [n for n in sorted(self.trials) if whole or self.changed[n] > int(since)]
        if last is not None and len(numbers) > last:
            whole, numbers = True, sorted(self.trials)[max(0, len(self.trials) - last) :]
        trials = tuple(self.trials[number] for number in numbers)
        version = f"{self.incarnation}:{self.changes}"
        return Changes(trials, version, len(self.trials), whole)

    def newest(self, last=None):
        trials = [self.trials[number] for number in sorted(self.trials)]
        return tuple(trials[0 if last is None else max(0, len(trials) - last) :])


@pytest.fixture
def copy(tmp_path):
    return LocalCopy(tmp_path / "shared" / "copy.db")


def test_it_asks_only_for_what_has_changed(copy):
    remote = Remote(5)
    assert copy.update("job", 1000, remote.fetch) == (remote.newest(), "a:5", False)
    remote.store(7, remote.trials[7].finish(REACHED))
    remote.begin()
    assert copy.update("job", 3, remote.fetch) == (remote.newest(3), "a:7", False)
    assert copy.update("job", None, remote.fetch).trials == remote.newest()
    assert remote.asked == [(None, 1000), ("a:5", 1000), ("a:7", None)]


def test_it_says_when_it_was_read_to_the_minute(copy, monkeypatch):
    remote = Remote(1)
    for now, read_at in ((1000.0, 1000.0), (1059.0, 1000.0), (1061.0, 1061.0), (500.0, 500.0)):
        monkeypatch.setattr("zeusrun.history.shared.copy.read_clock", lambda now=now: now)
        copy.update("job", 10, remote.fetch)
        assert copy.state("job").read_at == read_at
    assert len(remote.asked) == 4


def test_of_a_long_history_it_has_the_newest_trials_until_more_are_asked_for(copy):
    remote = Remote(1200)
    assert copy.update("job", 10, remote.fetch).trials == remote.newest(10)
    remote.store(7, remote.trials[7].finish(REACHED))  # older than the copy
    remote.begin()
    assert copy.update("job", 1000, remote.fetch).trials == remote.newest(1000)
    assert copy.update("job", None, remote.fetch).trials == remote.newest()
    remote.store(10, remote.trials[10].finish(REACHED))
    assert copy.update("job", None, remote.fetch).trials == remote.newest()
    assert remote.asked == [(None, 1000), ("a:1200", 1000), (None, None), ("a:1202", None)]
    assert copy.state("job").total == 1201


def test_after_many_changes_it_is_made_anew(copy):
    remote = Remote(3)
    copy.update("job", 2, remote.fetch)
    for _ in range(1100):
        remote.begin()
    assert copy.update("job", 1000, remote.fetch).trials == remote.newest(1000)
    assert copy.snapshot("job", None).trials == remote.newest(1000)


def test_older_trials_that_are_added_later_come_before_those_it_has(copy):
    remote = Remote()
    remote.store(7000, build_trial(1200))
    copy.update("job", 1000, remote.fetch)
    for number in range(1, 1100):
        remote.store(number, build_trial(number))
        if number == 500:
            assert copy.update("job", 1000, remote.fetch).trials == remote.newest()
    remote.store(8000, build_trial(1201))
    assert copy.update("job", 2, remote.fetch).trials == remote.newest(2)
    remote.store(7500, build_trial(1200, 2))
    remote.store(5, remote.trials[5].finish(REACHED))  # older than the copy
    assert copy.update("job", 1000, remote.fetch).trials == remote.newest(1000)
    assert copy.update("job", None, remote.fetch).trials == remote.newest()


def test_another_database_makes_it_anew(copy):
    copy.update("job", 10, Remote(5).fetch)
    other = Remote(2, "b")
    assert copy.update("job", 10, other.fetch) == (other.newest(), "b:2", False)
    assert copy.snapshot("job", 10).trials == other.newest()


def test_without_the_server_it_has_what_it_had(copy):
    assert copy.snapshot("job", 10) is None
    assert (copy.jobs(), copy.state("job")) == ([], None)
    remote = Remote(3)
    remote.store(7, remote.trials[7].finish(REACHED))
    copy.update("job", 10, remote.fetch)
    assert copy.snapshot("job", 2) == (remote.newest(2), "a:4", True)
    assert copy.jobs() == ["job"]


def test_a_trial_is_found_by_its_id_its_uuid_and_the_id_that_it_had_offline(copy):
    remote, uuid = Remote(1), "0123456789abcdef" * 2
    remote.begin(uuid=uuid)
    copy.update("job", 10, remote.fetch)
    trial = remote.newest()[1]
    for name in ("job-2-1", uuid, offline_name("job", uuid)):
        assert copy.find(name) == trial
    for name in ("job-3-1", "0" * 32, "other-offline-01234567", "job-offline-00000000"):
        assert copy.find(name) is None


def test_a_process_that_was_faster_is_not_undone(copy):
    remote = Remote(2)
    copy.update("job", 10, remote.fetch)
    other = LocalCopy(copy._path)

    def fetch(after, last):
        found = remote.fetch(after, last)
        if len(remote.asked) == 2:  # another process reads more meanwhile
            remote.begin()
            other.update("job", 10, remote.fetch)
        return found

    remote.begin()
    assert copy.update("job", 10, fetch).trials == remote.newest()
    assert copy.snapshot("job", 10).version == "a:4"


def test_threads_share_it(copy):
    remote, read_ = Remote(50), []

    def read():
        read_.append(copy.update("job", 20, remote.fetch).trials)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_ == [remote.newest(20)] * 8


@pytest.mark.parametrize("damage", [b"no database", b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_removed_and_made_anew(copy, damage):
    remote = Remote(3)
    copy.update("job", 10, remote.fetch)
    copy._path.write_bytes(damage)
    with pytest.raises(CopyError, match="damaged"):
        copy.update("job", 10, remote.fetch)
    assert copy.update("job", 10, remote.fetch).trials == remote.newest()


def test_it_is_for_its_owner_alone(copy):
    copy.update("job", 10, Remote(1).fetch)
    assert copy._path.stat().st_mode & 0o777 == 0o600


def test_a_changed_trial_is_decoded_again(copy):
    remote = Remote(2)
    first = copy.update("job", 10, remote.fetch).trials
    remote.store(7, replace(remote.trials[7], why="another"))
    second = copy.update("job", 10, remote.fetch).trials
    assert second[0].why == "another"
    assert second[1] is first[1]
