"""Which history is opened for a name, and for a job."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.factories import begin, build_trial
from tests.history.memory import MemoryHistory
from zeusrun.errors import HistoryError, UsageError, ZeusrunError
from zeusrun.files import private
from zeusrun.history.http.client import HttpHistory
from zeusrun.history.registry import (
    JobHistories,
    chosen_histories,
    find_default,
    known_servers,
    open_history,
    open_named,
    remember_choice,
)
from zeusrun.history.shared.store import SharedHistory
from zeusrun.history.tinydb.store import TinyDBHistory


def test_without_a_name_it_is_that_of_the_home(tmp_path):
    history = open_history(tmp_path, {})
    assert isinstance(history, TinyDBHistory)
    assert (history.address("job"), history.keeps_leases("job")) == (None, False)
    assert list(tmp_path.iterdir()) == []


def test_an_address_opens_the_history_on_a_server(tmp_path):
    name = "https://zeus.example.org:8443/team"
    history = open_history(tmp_path, {"ZEUSRUN_HISTORY": name})
    assert isinstance(history, SharedHistory)
    assert (history.address("job"), history.keeps_leases("job")) == (name, True)
    assert isinstance(history.remote, HttpHistory)
    remember_choice(tmp_path, "url", name)  # a job of this name is no server
    ((url, folder),) = known_servers(tmp_path).items()
    assert (url, folder.name[:22]) == (name, "zeus.example.org-8443-")


def test_two_that_open_a_history_for_the_first_time_do_not_disturb_each_other(
    tmp_path, monkeypatch
):
    name, both = "https://zeus.example.org", threading.Barrier(2)

    def write_together(*arguments, **options):
        write(*arguments, **options)
        both.wait(300)

    write = private._write
    monkeypatch.setattr(private, "_write", write_together)
    with ThreadPoolExecutor(2) as threads:
        for opened in [threads.submit(open_named, tmp_path, {}, name) for _ in range(2)]:
            opened.result()
    assert list(known_servers(tmp_path)) == [name]


def test_a_home_that_cannot_be_written_is_no_reason_not_to_read(tmp_path):
    (tmp_path / "shared").write_text("in the way")
    assert isinstance(open_named(tmp_path, {}, "https://zeus.example.org"), SharedHistory)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("redis://me:secret@host/0", "no installed plugin has that name"),
        ("sqlite:////srv/history.db", "run `zeusrun serve --database-url URL`"),
        ("postgresql://me:secret@host/zeusrun", "run `zeusrun serve --database-url URL`"),
        ("https://me:secret@host", "must not contain a user name, a password"),
        ("other", "no installed plugin"),
        ("127.0.0.1:8801", "begins with https:// or http://"),
    ],
)
def test_what_cannot_be_opened_is_refused_without_its_password(tmp_path, name, words):
    with pytest.raises(UsageError, match=words) as error:
        open_named(tmp_path, {}, name)
    assert "secret" not in str(error.value)


def test_the_home_remembers_which_history_a_job_file_names(tmp_path):
    assert chosen_histories(tmp_path) == {}
    remember_choice(tmp_path, "job", None)
    assert list(tmp_path.iterdir()) == []
    remember_choice(tmp_path, "job", "https://a.example.org")
    remember_choice(tmp_path, "job", "https://b.example.org")
    remember_choice(tmp_path, "other", "tinydb")
    assert chosen_histories(tmp_path) == {"job": "https://b.example.org", "other": "tinydb"}
    history = open_history(tmp_path, {"ZEUSRUN_HISTORY": "https://c.example.org"})
    assert history.address("job") == "https://b.example.org"
    assert history.address("any") == "https://c.example.org"
    assert history.address("other") is None
    remember_choice(tmp_path, "job", None)
    assert list(chosen_histories(tmp_path)) == ["other"]


def test_the_server_that_connect_named_is_below_the_job_file_and_the_environment(tmp_path):
    path = tmp_path / "address"
    path.write_text("https://a.example.org\n")
    assert find_default(tmp_path, {}) == ("https://a.example.org", f" (from {path})")
    assert find_default(tmp_path, {"ZEUSRUN_HISTORY": "tinydb"}) == ("tinydb", "")
    assert open_history(tmp_path, {}).address("any") == "https://a.example.org"
    own = open_history(tmp_path, {}, own={"job": "https://b.example.org"})
    assert own.address("job") == "https://b.example.org"
    assert own.address("any") == "https://a.example.org"


def test_an_error_says_that_the_home_names_the_server(tmp_path, monkeypatch):
    monkeypatch.setattr("zeusrun.history.shared.spool.READ_S", 0.0)
    (tmp_path / "address").write_text("http://127.0.0.1:1")
    with pytest.raises(ZeusrunError, match=rf"127.0.0.1:1 \(from {tmp_path}/address\)"):
        open_history(tmp_path, {}).forget("line-1-1", forgotten=True)


def test_an_address_that_cannot_be_read_leads_to_no_other_history(tmp_path):
    path = tmp_path / "address"
    for content in (b"", b"tinydb", b"\xff\x00"):
        path.write_bytes(content)
        with pytest.raises(HistoryError, match=r"it contains no address; `zeusrun connect --rep"):
            open_history(tmp_path, {})
    path.unlink()
    path.mkdir()
    with pytest.raises(HistoryError, match="Is a directory"):
        open_history(tmp_path, {})
    assert open_history(tmp_path, {"ZEUSRUN_HISTORY": "tinydb"}).jobs() == []


@pytest.mark.parametrize("name", ["nosuch", "http://127.0.0.1:1"])
def test_an_error_says_which_job_file_has_named_the_history(tmp_path, name, monkeypatch):
    monkeypatch.setattr("zeusrun.history.shared.spool.READ_S", 0.0)
    remember_choice(tmp_path, "line", name)
    with pytest.raises(ZeusrunError, match=r"\(from the job file of line\)"):
        open_history(tmp_path, {}).forget("line-1-1", forgotten=True)
    with pytest.raises(ZeusrunError) as error:
        open_history(tmp_path, {"ZEUSRUN_HISTORY": name}).forget("line-1-1", forgotten=True)
    assert "job file of" not in str(error.value)


def test_a_job_file_that_was_named_wins(tmp_path):
    remember_choice(tmp_path, "job", "https://a.example.org")
    history = open_history(tmp_path, {}, own={"job": "https://b.example.org"})
    assert history.address("job") == "https://b.example.org"


class TestJobHistories:
    @pytest.fixture
    def stores(self):
        return {"all": MemoryHistory(), "own": MemoryHistory()}

    @pytest.fixture
    def history(self, stores):
        return JobHistories(stores.__getitem__, "all", {"job": "own"})

    def test_each_job_is_asked_for_in_its_own_history(self, history, stores):
        first, second = begin(history, build_trial(1)), begin(history, build_trial(1, job="other"))
        assert stores["own"].trials("job") == [first]
        assert stores["all"].trials("other") == [second]
        assert history.jobs() == ["job", "other"]
        assert history.find("job-1-1") == first
        assert history.find("other-1-1") == second
        assert history.find("nothing") is None
        assert (history.count("job"), history.unfinished("other")) == (1, [second])

    def test_each_job_gets_the_answers_of_its_own_history(self, tmp_path, sql_history):
        shared = SharedHistory(sql_history, tmp_path, "the database")
        stores = {"all": MemoryHistory(), "own": shared}
        history = JobHistories(stores.__getitem__, "all", {"job": "own"})
        for job, address in (("job", "the database"), ("other", None)):
            trial = begin(history, build_trial(1, job=job, uuid=f"{len(job):032x}"))
            assert history.address(job) == address
            if job == "job":
                shared.renew(trial.trial, {"epoch": 1})
            assert history.keeps_leases(job) == history.ask_to_cancel(trial.trial) == bool(address)
            assert history.live(trial.trial) == (None if address is None else {"epoch": 1})
            assert history.add([trial]) == [trial]
        assert history.add([]) == []
        assert history.restore("job", []).found == ()
        with pytest.raises(UsageError, match="unset ZEUSRUN_HISTORY"):
            history.restore("other", [])

    def test_only_what_is_needed_is_opened(self, stores):
        opened = []

        def open_(name):
            opened.append(name)
            return stores[name]

        history = JobHistories(open_, "all", {"job": "own"})
        assert history.trials("job") == []
        assert opened == ["own"]
        history.trials("job")
        history.jobs()
        assert opened == ["own", "all"]
