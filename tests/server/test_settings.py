"""Settings of a server, and which database it uses."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")

from zeusrun.errors import UsageError
from zeusrun.server.settings import ServerSettings, find_database


def test_the_database_is_that_of_the_option_then_of_the_environment_then_of_the_home(tmp_path):
    own = f"sqlite:///{tmp_path}/server/history.db"
    environment = {"ZEUSRUN_DATABASE_URL": "postgresql://me@host/environment"}
    assert find_database(tmp_path, {}) == own
    assert find_database(tmp_path, {"ZEUSRUN_DATABASE_URL": ""}) == own
    assert find_database(tmp_path, environment) == "postgresql://me@host/environment"
    given = "postgresql://me@host/option"
    assert find_database(tmp_path, environment, given) == given


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"path_prefix": "x"}, "^--path-prefix must be a path such as /zeusrun, .* not 'x'"),
        ({"path_prefix": "/zeusrun/"}, "without a slash at its end"),
        ({"path_prefix": "/a//b"}, "--path-prefix must be a path"),
        ({"ssl_certfile": "x"}, "needs both --ssl-certfile and --ssl-keyfile"),
        ({"ssl_keyfile": "x"}, "needs both --ssl-certfile and --ssl-keyfile"),
    ],
)
def test_wrong_settings_are_refused(values, message):
    with pytest.raises(UsageError, match=message):
        ServerSettings("sqlite:////x.db", **values)


def test_a_database_that_was_mistyped_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path, message in (
        (
            f"{tmp_path}/nope/dir/x.db",
            f"folder {tmp_path}/nope/dir of the database cannot be used: No such",
        ),
        (f"{tmp_path}/file/x.db", "Not a directory"),
        ("x.db", "write sqlite:////absolute"),
    ):
        with pytest.raises(UsageError, match=message):
            find_database(tmp_path, {}, f"sqlite:///{path}")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_the_database_is_not_shown():
    assert "hunter2" not in repr(ServerSettings("postgresql://me:hunter2@host/x"))
