"""The verbs of ``db``, over SQLite files and what is no database."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


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
    assert cli(*verb) == (2, "", f"zeusrun: a server needs sqlalchemy; {how}\n")


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
        (("create", "--database-url", "nonsense"), 2, "cannot be read"),
        (("create", "--database-url", "mssql://me:s3cret@host/d"), 2, "neither sqlite:"),
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
