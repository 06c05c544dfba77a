"""What `zeusrun doctor` says of a shared history."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from tests.factories import REACHED, build_trial
from tests.servers import running
from zeusrun import __version__
from zeusrun.clock import read_clock
from zeusrun.history.registry import open_named
from zeusrun.history.sql.tokens import create_token, revoke_token
from zeusrun.maintenance.doctor import check_server, check_unused


@pytest.fixture
def server(sqlite_url, monkeypatch):
    monkeypatch.setattr("zeusrun.server.auth._FRESH_S", 0.0)
    with running(sqlite_url) as server:
        yield server


@pytest.fixture
def check(tmp_path):
    """Return the lines of doctor about a history, with a token."""

    def run(url, token=None):
        environment = {} if token is None else {"ZEUSRUN_TOKEN": token}
        history = open_named(tmp_path / "home", environment, url)
        checks = check_server(history)
        history.remote.close()
        assert token is None or token not in str(checks)
        return [(each.name, each.well, each.found) for each in checks]

    return run


def make(server, **values):
    return create_token(server.history.engine, **{"jobs": "*", "can_write": True, **values})


def test_a_server_without_tokens(server, check):
    (line,) = check(server.url)
    assert line[:2] == ("server", True)
    assert line[2].startswith(f"{server.url}: 0 jobs, zeusrun {__version__}, ")
    assert "token" not in line[2]


def test_what_a_token_permits(server, check):
    text, token = make(server, jobs="team-*")
    ((_, _, found),) = check(server.url, text)
    assert found.endswith(f", token {token.id} for jobs called team-*")
    text, token = make(server, can_write=False)
    ((_, _, found),) = check(server.url, text)
    assert found.endswith(f", token {token.id} for jobs called *, which may only read")


@pytest.mark.parametrize("what", ["wrong", "none", "expired", "revoked"])
def test_a_token_that_the_server_refuses(server, check, what):
    text, token = make(server, lasts_s=-1.0 if what == "expired" else None)
    if what == "revoked":
        revoke_token(server.history.engine, token.id)
    given = {"wrong": f"zeusrun_{'0' * 8}_{'a' * 43}", "none": None}.get(what, text)
    ((name, well, found),) = check(server.url, given)
    assert (name, well) == ("server", False)
    said = {
        "wrong": "this token is not known to the server",
        "none": "this server needs a token",
        "expired": f"the token {token.id} has expired",
        "revoked": f"the token {token.id} was revoked",
    }
    assert f"refuses: {said[what]}" in found
    assert "zeusrun token create" in found


@pytest.mark.parametrize(("apart_s", "where"), [(300, "behind"), (-300, "ahead of")])
def test_a_clock_that_is_wrong(server, check, monkeypatch, apart_s, where):
    here = f"{__package__}.doctor".replace("tests", "zeusrun")
    monkeypatch.setattr(f"{here}.read_clock", lambda: read_clock() + apart_s)
    name, well, found = check(server.url)[1]
    assert (name, well) == ("clock", None)
    assert f" s {where} the clock here" in found


def test_what_waits_for_an_old_address_is_shown(server, tmp_path):
    home, old = tmp_path / "home", "http://127.0.0.1:1"
    spool = open_named(home, {}, old).spool
    offline = build_trial(uuid="2" * 32, trial="job-offline-22222222", recurrence=7)
    spool.put("begin", offline)
    spool.put("finish", offline.finish(REACHED))
    (line,) = check_unused(home, [server.url])
    assert line.found.startswith(f"2 writes wait for {old}, the oldest of job-offline-22222222 si")
    assert "`zeusrun repair --restore JOB` adds the runs of this machine there" in line.advice
    assert line.advice.endswith(f"; then remove {spool.folder}")
    assert check_unused(home, [old]) == []
    shutil.rmtree(spool.folder)
    assert check_unused(home, [server.url]) == []
