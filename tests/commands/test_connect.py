"""``zeusrun connect`` against a real server on loopback."""

from __future__ import annotations

import http.server
import json
import re
import stat
import sys
import threading

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")
pytest.importorskip("uvicorn")
pytest.importorskip("urllib3")

from tests.factories import begin, build_trial
from tests.servers import running
from zeusrun.history.sql.tokens import list_tokens
from zeusrun.history.tinydb.store import TinyDBHistory


@pytest.fixture
def server(sqlite_url):
    with running(sqlite_url) as server:
        yield server


@pytest.fixture
def make(zeusrun, server):
    """Create a token on the server as its user does; return the arguments of the command shown."""

    def run(*options):
        options = options or ("--job", "*", "--write")
        made = zeusrun("token", "create", *options, "--database-url", server.database_url)
        shown = re.search(r"^  zeusrun (connect) ADDRESS (\S+)$", made.stderr, re.MULTILINE)
        return shown[1], server.url, shown[2]

    return run


@pytest.fixture
def home(zeusrun):
    return zeusrun.home


def test_one_line_connects_a_home(zeusrun, server, make, home):
    command = make()
    begin(server.history, build_trial(job="digits"))
    done = zeusrun(*command)
    assert (done.returncode, done.stderr) == (0, "")
    lines = " ".join(done.stdout.split())
    assert f"The home {home} uses {server.url} from now on" in lines
    assert f"✓ server {server.url} (from {home}/address): 1 job" in lines
    own_id = (home / "token").read_text().split("_")[1]
    assert f", token {own_id} for jobs called *" in lines
    for name in ("token", "address"):
        assert stat.S_IMODE((home / name).stat().st_mode) == 0o600
    assert "digits" in zeusrun("history").stdout
    assert "digits-1-1" in zeusrun("history", "digits", "--json").stdout
    assert f"{server.url} (from {home}/address)" in " ".join(zeusrun("doctor").stdout.split())
    assert re.fullmatch(r".+, by a code of [0-9a-f]{8}", list_tokens(server.history.engine)[1].note)


def test_a_submit_of_a_connected_home_is_recorded_on_the_server(zeusrun, server, make):
    assert zeusrun(*make()).returncode == 0
    assert zeusrun("submit", zeusrun.job()).returncode == 0
    assert server.history.count("job") == 1
    assert zeusrun("history", ZEUSRUN_HISTORY="tinydb").stdout.startswith("No runs yet")


def test_a_code_works_once_and_a_second_home_keeps_nothing(zeusrun, make, home, tmp_path):
    command = make()
    assert zeusrun(*command).returncode == 0
    second = zeusrun(*command, ZEUSRUN_HOME=str(tmp_path / "second"))
    assert (second.returncode, second.stdout) == (6, "")
    assert "this code cannot be used: it is mistyped, was used before" in second.stderr
    assert not (tmp_path / "second" / "token").exists()


def test_a_token_that_is_there_is_not_replaced_unasked(zeusrun, make, home):
    assert zeusrun(*make()).returncode == 0
    assert zeusrun(*make()).returncode == 0  # the same server
    (home / "address").write_text("https://zeus.example\n")
    before, command = (home / "token").read_text(), make()
    done = zeusrun(*command)
    assert (done.returncode, "give --replace" in done.stderr) == (2, True)
    assert (home / "token").read_text() == before
    assert zeusrun(*command, "--replace").returncode == 0  # the code was not used
    assert (home / "token").read_text() != before


def test_a_home_that_cannot_be_written_uses_up_no_code(zeusrun, make, home):
    (home / "address").mkdir(parents=True)
    command = make()
    done = zeusrun(*command)
    assert (done.returncode, "Is a directory" in done.stderr) == (6, True)
    assert not (home / "token").exists()
    (home / "address").rmdir()
    assert zeusrun(*command).returncode == 0


def test_a_token_that_only_reads_connects_and_is_told(zeusrun, make):
    done = zeusrun(*make("--job", "*", "--read"))
    assert (done.returncode, "which may only read" in " ".join(done.stdout.split())) == (0, True)
    assert zeusrun("history").returncode == 0


def test_json_has_the_checks_of_doctor(zeusrun, server, make, home):
    done = zeusrun(*make(), "--json")
    answer = json.loads(done.stdout)
    assert (answer["server"], answer["home"]) == (server.url, str(home))
    assert [(each["name"], each["well"]) for each in answer["checks"]] == [("server", True)]


def test_forget_uses_the_history_of_the_home_again(zeusrun, make, home):
    assert zeusrun("connect", "--forget").returncode == 2
    assert zeusrun(*make()).returncode == 0
    done = zeusrun("connect", "--forget")
    assert (done.returncode, "uses its own history again" in done.stdout) == (0, True)
    assert not {"token", "address"} & {path.name for path in home.iterdir()}
    assert "server" not in zeusrun("doctor", "--json").stdout


def test_what_takes_precedence_over_the_server_and_what_it_lacks_are_told(zeusrun, make, home):
    begin(TinyDBHistory(home / "history"), build_trial(1))
    other = {"ZEUSRUN_HISTORY": "tinydb", "ZEUSRUN_TOKEN": "another"}
    done = zeusrun(*make(), **other)
    assert done.returncode == 5  # the server refuses that token
    for words in ("ZEUSRUN_HISTORY names another", "ZEUSRUN_TOKEN takes", "history --import"):
        assert words in done.stderr


@pytest.fixture
def other_server():
    """A web server that is no zeusrun; return it and the methods that it was asked with."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            asked.append(self.command)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def __getattr__(self, name):
            return self.answer if name.startswith("do_") else super().__getattribute__(name)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{web.server_port}", asked
        web.shutdown()


def test_what_is_no_zeusrun_server_gets_no_code(zeusrun, other_server, home):
    url, asked = other_server
    done = zeusrun("connect", url, "aaaa-bbbb-cccc-dddd")
    assert (
        done.returncode,
        "is this the address of a zeusrun server of the same version?" in done.stderr,
    ) == (6, True)
    assert asked == ["GET"]
    assert not (home / "token").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "give the address of the server and a code"),
        (("http://127.0.0.1:1",), 2, "give the address of the server and a code"),
        (("ADDRESS", "x"), 2, "'ADDRESS' is not the address of a zeusrun server"),
        (("http://me:secret@127.0.0.1:1", "x"), 2, "must not contain a user name, a password"),
        (("http://127.0.0.1:1", "x"), 6, "http://127.0.0.1:1 does not respond"),
        (("http://127.0.0.1:1", "--forget"), 2, "--forget takes nothing else"),
    ],
)
def test_what_cannot_be_connected_is_refused(cli, zeusrun, arguments, code, words):
    found, out, err = cli("connect", *arguments)
    assert (found, out, words in err, "secret" in err) == (code, "", True, False)
    assert not (zeusrun.home / "token").exists()


def test_a_code_that_is_too_long_is_refused_in_one_sentence(zeusrun, make):
    command, url, _ = make()
    done = zeusrun(command, url, "x" * 101)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "refuses the code: body.code: String should have at most 100" in done.stderr


def test_without_its_extra_it_says_what_to_install(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "urllib3", None)
    how = "install zeusrun with its extra 'http': pip install '/path/to/zeusrun[http]'"
    assert cli("connect", "http://127.0.0.1:1", "x") == (
        *(2, ""),
        f"zeusrun: a history on a server needs urllib3; {how}\n",
    )
