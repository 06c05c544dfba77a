"""``zeusrun serve`` as a process, and the verbs of ``db`` and ``token``."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")
pytest.importorskip("uvicorn")

from tests.factories import build_trial


def ask(port, method, path, body=None, token=None, **own):
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    content = None if body is None else json.dumps(body)
    headers = {"Content-Type": "application/json", **own}
    headers |= {} if token is None else {"Authorization": f"Bearer {token}"}
    line.request(method, path, content, headers)
    answer = line.getresponse()
    status, text = answer.status, answer.read()
    line.close()
    return status, json.loads(text)


def wait_until_it_answers(port, child):
    while True:
        try:
            return ask(port, "GET", "/readyz")
        except OSError:
            assert child.poll() is None, child.stdout.read()
            time.sleep(0.05)


def start(zeusrun, *arguments, **env):
    """Start a server on a free port; return it, its port and what it says."""
    child = zeusrun.start("serve", "--port", "0", *arguments, **env)
    lines = []
    while not lines or not lines[-1].startswith("Ctrl-C"):
        line = child.stdout.readline()
        assert line, lines
        lines.append(line)
    text = "".join(lines)
    port = int(re.search(r"http://[^ ]*:(\d+)", text)[1])
    wait_until_it_answers(port, child)
    return child, port, text


def begin(port, number):
    version = ask(port, "GET", "/api/v1/jobs/job/trials?last=0")[1]["version"]
    body = {"trial": build_trial(number).to_json(), "after": version}
    return ask(port, "POST", "/api/v1/jobs/job/trials", body)


def test_it_needs_no_settings_keeps_what_it_was_given_and_stops_on_sigterm(zeusrun):
    child, port, text = start(zeusrun)
    assert text == (
        "zeusrun serve: starting\n"
        f"zeusrun serve: opening the database {zeusrun.home}/server/history.db\n"
        f"zeusrun serves http://127.0.0.1:{port}\n"
        f"  page      http://127.0.0.1:{port}/\n"
        f"  a job     history: http://127.0.0.1:{port}   in its job file, or ZEUSRUN_HISTORY\n"
        "  tokens    none needed on this machine; to connect another one, run here: "
        "zeusrun token create --job '*' --write\n"
        f"  database  {zeusrun.home}/server/history.db, a new, empty history\n"
        "Ctrl-C stops it.\n"
    )
    assert begin(port, 1)[0] == 201
    child.send_signal(signal.SIGTERM)
    assert child.wait(300) == 0
    assert child.stdout.read() == "info: begin job-1-1: token none from 127.0.0.1\n"
    assert oct((zeusrun.home / "server").stat().st_mode & 0o77) == "0o0"
    child, port, text = start(zeusrun)
    assert text.count("history.db\n") == 2  # not a new one
    assert ask(port, "GET", "/api/v1/jobs/job/trials")[1]["total"] == 1
    child.send_signal(signal.SIGINT)
    assert child.wait(300) == 0


def test_it_knows_the_clients_of_a_trusted_proxy(zeusrun):
    child, port, text = start(zeusrun, "--access-log", "--require-token")
    assert "tokens    needed, but none is valid: zeusrun token create" in text
    for _ in range(20):
        assert ask(port, "GET", "/api/v1", **{"X-Forwarded-For": "192.0.2.7"})[0] == 401
        assert ask(port, "GET", "/api/v1")[0] == 401
    child.send_signal(signal.SIGTERM)
    assert child.wait(300) == 0
    log = child.stdout.read()
    assert log.count('info: 192.0.2.7:0 - "GET /api/v1 HTTP/1.1" 401') == 20
    assert len(re.findall(r'info: 127.0.0.1:[1-9]\d* - "GET /api/v1 HTTP/1.1" 401', log)) == 20


@pytest.mark.long
def test_its_log_has_no_token(zeusrun):
    child, port, _ = start(zeusrun, "--access-log")
    token = zeusrun("token", "create", "--job", "*", "--write").stdout.strip()
    wrong = "zeusrun_00000000_" + "x" * 43
    for each, status in ((token, 400), (wrong, 401)):
        assert ask(port, "GET", f"/zeus/{each}/jobs/batch_size?job_id=a")[0] == status
        assert ask(port, "GET", f"/nope?token={each}", token=each)[0] in {401, 404}
    child.send_signal(signal.SIGTERM)
    assert child.wait(300) == 0
    log = child.stdout.read()
    assert log.count("GET /zeus/***/jobs/batch_size?job_id=a") == 2
    for secret in (token, wrong):
        assert secret[17:] not in log


def test_a_token_is_made_used_listed_and_revoked(zeusrun, command):
    assert command("db", "create").returncode == 0
    none = f"{zeusrun.home}/server/history.db has no tokens yet; make one: "
    listed = " ".join(command("token", "list").stdout.split())
    assert listed == f"{none}zeusrun token create --job '*' --write"
    made = command("token", "create", "--job", "team-*", "--write", "--expires", "90d")
    token = made.stdout.strip()
    own_id = token.split("_")[1]
    assert re.fullmatch(r"zeusrun_[0-9a-f]{8}_[\w-]{43}", token)
    assert re.fullmatch(
        rf"Token {own_id} may read and change jobs called team-\*, until ....-..-.. ..:.., on the "
        rf"server of {zeusrun.home}/server/history.db. It is shown only now.\n"
        r"To connect another machine, run this on it within an hour; it works once:\n"
        r"  zeusrun connect ADDRESS \w{4}-\w{4}-\w{4}-\w{4}\n"
        r"It gets a token of its own with the same rights. Or: export ZEUSRUN_TOKEN=TOKEN\n"
        r"Replace ADDRESS by the address of the server, such as https://zeus.example.org\n",
        made.stderr,
    )
    reading = command("token", "create", "--read", "--job", "*", "--note", "the page", "--json")
    secret = json.loads(reading.stdout)
    assert secret["connect"].startswith("zeusrun connect ADDRESS ")
    zeus = command("token", "create", "--for", "zeus", "--job", "team-*")
    assert f"Token {zeus.stdout.split('_')[1]} is for Zeus's clients of jobs called" in zeus.stderr
    assert 'server_url="ADDRESS/zeus/TOKEN"' in zeus.stderr
    listed = json.loads(command("token", "list", "--json").stdout)
    assert [(each["jobs"], each["may"], each["state"]) for each in listed] == [
        ("team-*", "write", "valid"),
        ("*", "read", "valid"),
        ("team-*", "zeus", "valid"),
    ]
    assert (listed[1]["note"], listed[1]["expires_at"]) == ("the page", None)
    shown = command("token", "list").stdout
    assert own_id in shown
    assert re.search(r"team-\*  zeus ", shown)
    assert token not in shown + str(listed)
    assert secret["secret"] not in shown + str(listed)
    assert command("token", "revoke", token).stdout == f"Token {own_id} is revoked.\n"
    assert command("token", "revoke", secret["token"]).returncode == 0
    assert [each["state"] for each in json.loads(command("token", "list", "--json").stdout)] == [
        "revoked",
        "revoked",
        "valid",
    ]


def test_wrong_arguments_of_token_are_refused(command):
    assert command("db", "create").returncode == 0
    for arguments, message in (
        (("create", "--job", "*"), "say what the token permits by one of --read, --write"),
        (("create", "--read"), "Missing option '--job'"),
        (("create", "--job", "*", "--for", "all"), "'all' is not"),
        (
            ("create", "--job", "*", "--for", "zeus", "--write"),
            "by one of --read, --write, which changes histories, too, and --for zeus",
        ),
        (
            ("create", "--job", "*", "--for", "zeus", "--read"),
            "by one of --read, --write, which changes histories, too, and --for zeus",
        ),
        (("create", "--read", "--job", "["), "--job '[' is not the name of a job, nor a pattern"),
        (("create", "--read", "--job", "a b"), "--job 'a b' is not the name of a job"),
        (
            ("create", "--read", "--job", "[a-c]*", "--expires", "90"),
            "--expires must be a number with s, m, h or d",
        ),
        (("revoke", "nobody"), "history.db has no token 'nobody'; tokens: none yet"),
    ):
        done = command("token", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr


def test_it_does_not_listen_to_other_machines_without_tokens_and_https(command):
    done = command("serve", "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2
    for words in ("0.0.0.0", "zeusrun token create", "--ssl-certfile", "--insecure accepts less"):
        assert words in done.stderr
    assert command("db", "create").returncode == 0  # as the message says
    assert command("token", "create", "--read", "--job", "*").returncode == 0
    done = command("serve", "--host", "::", "--port", "0")
    assert done.returncode == 2
    assert "tokens are sent in the clear" in done.stderr
    assert "zeusrun token create" not in done.stderr


def test_a_port_that_is_taken_is_told(command):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = command("serve", "--port", str(port))
    assert done.returncode == 5
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in done.stderr


def test_a_database_that_cannot_be_used_is_told_without_its_password(zeusrun):
    pytest.importorskip("psycopg")
    url = "postgresql://me:hunter2@127.0.0.1:1/x?application_name=zeusrun"
    name = "postgresql://me:***@127.0.0.1:1/x"
    for verb in (("token", "list"), ("db", "create"), ("serve", "--port", "0")):
        done = zeusrun(*verb, "--database-url", url)
        assert (done.returncode, done.stdout) == (6, "")
        *before, last = done.stderr.splitlines()
        assert last.startswith(f"zeusrun: the database {name} does not respond: ")
        assert "hunter2" not in done.stderr
    assert before == [
        *("zeusrun serve: starting", f"zeusrun serve: opening the database {name}"),
    ]
    done = zeusrun("doctor", ZEUSRUN_HISTORY=url)
    assert "run `zeusrun serve --database-url URL`" in " ".join(done.stdout.split())
    assert "hunter2" not in done.stdout + done.stderr


def test_a_certificate_that_cannot_be_used_is_told(zeusrun, command):
    (zeusrun.folder / "key.pem").write_text("no key")
    done = command("serve", "--ssl-certfile", "none.pem", "--ssl-keyfile", "key.pem")
    assert done.returncode == 2
    assert (
        "the certificate none.pem with the key key.pem cannot be used: No such file" in done.stderr
    )


@pytest.mark.long
def test_two_servers_serve_one_database(zeusrun):
    url = f"sqlite:///{zeusrun.folder}/shared.db"
    servers = [start(zeusrun, "--database-url", url) for _ in range(2)]
    ports = [port for _, port, _ in servers]
    for number in range(1, 21):
        assert begin(ports[number % 2], number)[0] == 201
    for port in ports:
        assert ask(port, "GET", "/api/v1/jobs/job/trials")[1]["total"] == 20
    for child, _, _ in servers:
        child.send_signal(signal.SIGTERM)
    assert [child.wait(300) for child, _, _ in servers] == [0, 0]


@pytest.mark.long
def test_a_request_that_is_being_answered_is_finished_before_the_server_stops(zeusrun):
    import sqlite3

    child, port, _ = start(zeusrun)
    assert begin(port, 1)[0] == 201
    path = zeusrun.home / "server" / "history.db"
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")  # the server waits for this lock
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        line.request("PUT", "/api/v1/hosts/gpu1", b"{}", {"Content-Type": "application/json"})
        time.sleep(1)
        child.send_signal(signal.SIGTERM)
        time.sleep(1)
        assert child.poll() is None
        other.execute("ROLLBACK")
    assert line.getresponse().status == 204
    assert child.wait(300) == 0


@pytest.mark.long
def test_a_request_that_never_ends_does_not_keep_the_server(zeusrun):
    import sqlite3

    child, port, _ = start(zeusrun)
    path = zeusrun.home / "server" / "history.db"
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        line.request("PUT", "/api/v1/hosts/gpu1", b"{}", {"Content-Type": "application/json"})
        time.sleep(1)
        child.send_signal(signal.SIGTERM)
        started_t = time.monotonic()
        assert child.wait(300) == 0
        assert time.monotonic() - started_t < 45  # it waits for the database at most 30 s


@pytest.mark.long
def test_a_full_disk_refuses_new_trials_and_loses_none(zeusrun):
    """``ulimit -f`` lets a file grow no further, as a full disk would."""
    zeusrun("db", "create")
    path = zeusrun.home / "server" / "history.db"
    script = 'ulimit -f "$1"; shift; exec "$@"'
    blocks = (path.stat().st_size + (300 << 10)) // 512
    command = ["bash", "-c", script, "bash", str(blocks), *zeusrun.argv("serve", "--port", "0")]
    child = subprocess.Popen(
        command,
        env=zeusrun.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    zeusrun.started.append(child)
    text = "".join(iter(child.stdout.readline, "Ctrl-C stops it.\n"))
    port = int(re.search(r"http://[^ ]*:(\d+)", text)[1])
    wait_until_it_answers(port, child)
    statuses = []
    while len(statuses) < 3000 and 503 not in statuses:
        status, answer = begin(port, len(statuses) + 1)
        statuses.append(status)
    assert set(statuses) == {201, 503}
    assert answer["error"]["code"] == "unavailable"
    found = ask(port, "GET", "/api/v1/jobs/job/trials")[1]
    assert found["total"] == len(statuses) - 1
    assert len(found["trials"]) == len(statuses) - 1


def test_a_database_is_created_once(cli, tmp_path):
    url, path = f"sqlite:///{tmp_path}/history.db", f"{tmp_path}/history.db"
    for verb in (("token", "list"), ("token", "create", "--read", "--job", "*")):
        code, _, err = cli(*verb, "--database-url", url)
        assert (code, f"{path} cannot be op" in err, "zeusrun db create" in err) == (6, True, True)
    assert cli("db", "create", "--database-url", url) == (0, f"{path}: created the tables.\n", "")
    assert cli("db", "create", "--database-url", url)[1] == (
        f"{path}: nothing to do; the tables are there.\n"
    )
    assert cli("db", "restored", "--database-url", url)[:2] == (
        *(0, f"{path}: all clients will read this history anew.\n"),
    )


@pytest.mark.parametrize(
    "verb",
    [
        ("token", "list"),
        ("token", "create", "--job", "*", "--read"),
        ("token", "revoke", "1f2e3d4c"),
        ("serve",),
        ("db", "create"),
    ],
)
def test_without_its_extra_it_says_what_to_install(cli, monkeypatch, verb):
    for name in [each for each in sys.modules if each.startswith("zeusrun.history.sql")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    how = "install zeusrun with its extra 'server': pip install '/path/to/zeusrun[server]'"
    code, out, err = cli(*verb)
    assert (code, out) == (2, "")
    assert err.removeprefix("zeusrun serve: starting\n") == (
        f"zeusrun: a server needs sqlalchemy; {how}\n"
    )


def test_a_server_needs_what_writes_its_metrics(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    code, _, err = cli("serve")
    assert code == 2
    assert "a server needs prometheus_client; install zeusrun with its extra 'server'" in err


def test_the_database_comes_from_the_environment_too(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("ZEUSRUN_DATABASE_URL", f"sqlite:///{tmp_path}/own.db")
    assert cli("db", "create")[0] == 0
    assert (tmp_path / "own.db").exists()
    monkeypatch.delenv("ZEUSRUN_DATABASE_URL")
    _, out, _ = cli("db", "create")
    assert "/home/server/history.db: created" in out


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("create", "--database-url", "nonsense"), 2, "cannot be used"),
        (
            ("create", "--database-url", "mssql://me:s3cret@host/d"),
            2,
            "cannot be used; write sqlite:",
        ),
        (("create", "--database-url", "postgresql://me:s3cret@127.0.0.1:1/d"), 6, "not respond"),
        (("restored", "--database-url", "sqlite:////tmp/nope.db"), 6, "cannot be opened"),
        (
            ("create", "--database-url", "sqlite:////nope/x.db"),
            2,
            "folder /nope of the database cannot",
        ),
    ],
)
def test_what_cannot_be_done_is_said_without_a_password(cli, arguments, code, expected):
    pytest.importorskip("psycopg")
    found, out, err = cli("db", *arguments)
    assert (found, out) == (code, "")
    assert expected in err
    assert "s3cret" not in err
