"""Settings of a server: flags, the environment, the file, defaults."""

from __future__ import annotations

import errno
import re

import pytest
import yaml

pytest.importorskip("fastapi")

from tests.factories import ROOT
from zeusrun.errors import HistoryError, JobFileError, UsageError
from zeusrun.server.settings import ServerSettings, load_settings


def test_by_default_it_listens_here_on_a_database_of_its_own(tmp_path):
    settings = load_settings(tmp_path, {})
    assert (settings.host, settings.port, settings.workers) == ("127.0.0.1", 8787, 1)
    assert settings.database_url == f"sqlite:///{tmp_path}/server/history.db"
    assert settings.require_token is False


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path):
    (tmp_path / "server.yaml").write_text(
        "database_url: postgresql://me@host/file\nport: 1000\nworkers: 3\n"
    )
    environment = {"ZEUSRUN_DATABASE_URL": "postgresql://me@host/environment"}
    file = load_settings(tmp_path, {})
    assert (file.database_url, file.port, file.workers) == ("postgresql://me@host/file", 1000, 3)
    assert load_settings(tmp_path, environment).database_url == "postgresql://me@host/environment"
    given = {"database_url": "postgresql://me@host/flag", "port": 2000, "workers": None}
    flags = load_settings(tmp_path, environment, given)
    assert (flags.database_url, flags.port, flags.workers) == ("postgresql://me@host/flag", 2000, 3)


def test_the_docs_show_every_setting(tmp_path):
    text = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    shown, people = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "server.yaml").write_text(people)
    assert load_settings(tmp_path, {}).people["@research"] == "team-*"
    (tmp_path / "server.yaml").write_text(shown)
    assert set(yaml.safe_load(shown)) == set(ServerSettings.model_fields) - {"demo"}
    assert load_settings(tmp_path, {}).port == 8787


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prot: 1", "server.yaml:1: unknown key 'prot'; did you mean 'port'?"),
        ("\nport: high", "server.yaml:2: 'port' must be a whole number, not 'high'"),
        ("workers: 0", "'workers' must be greater than or equal to 1"),
        ("database_url: [postgresql://me:hunter2@host/x]", "'database_url' must be text"),
        ("path_prefix: zeusrun/", "'path_prefix' must be a path such as /zeusrun"),
        ("\nauth_header: X_User", "server.yaml:2: 'auth_header' must be the name of a header"),
        ("groups_header: 'X: y'", "'groups_header' must be the name of a header"),
        ("auth-header: X-User", "unknown key 'auth-header'; did you mean 'auth_header'?"),
        ("people: alice", "'people' must be a section of 'key: value' lines, not 'alice'"),
        ("people:\n  alice: a b", "server.yaml:2: 'people.alice' must be a job or a pattern of jo"),
        ("people:\n  a: x\n  bob: 5", "server.yaml:3: 'people.bob' must be text, not 5; put it in"),
        ("people:\n  bob: [a, b]", "server.yaml:2: 'people.bob' must be text, not a list"),
        ("people:\n  a: x\n  a: y", "server.yaml:3: the key 'a' is given twice"),
        ("people:\n  '@': x", "server.yaml:2: 'people.@' must be a person, a group such as"),
        ("people:\n  ' a': x", "server.yaml:2: 'people. a' must be a person, a group such as"),
        ("path_prefix: /a//b", "'path_prefix' must be a path such as /zeusrun"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path, content, message):
    (tmp_path / "server.yaml").write_text(content)
    with pytest.raises(JobFileError) as error:
        load_settings(tmp_path, {})
    assert message in str(error.value)
    assert "hunter2" not in str(error.value)


def test_a_wrong_flag_is_refused_by_its_name(tmp_path):
    with pytest.raises(JobFileError, match=r"^--path-prefix: 'path_prefix' must be a path"):
        load_settings(tmp_path, {}, {"path_prefix": "x"})
    with pytest.raises(UsageError, match="needs both --ssl-certfile and --ssl-keyfile"):
        load_settings(tmp_path, {}, {"ssl_certfile": "x"})


ENTRIES = "people: {'@research': team-*}\n"


def test_who_sets_a_header_for_people_also_says_who_and_of_which_proxies(tmp_path):
    file = tmp_path / "server.yaml"
    refused = {
        ENTRIES: "people and groups_header need auth_header: the header in which a proxy",
        "groups_header: X-Groups": "people and groups_header need auth_header",
        f"auth_header: X-User\n{ENTRIES}": "people: @research is a group, so groups_header must",
        f"auth_header: Authorization\n{ENTRIES}": "auth_header: Authorization is for tokens",
        "auth_header: X-User": "auth_header needs people: say in server.yaml who may read which",
    }
    for proxies in ("", "*", "0.0.0.0/0", "::/0", "proxy.example", "10.0.0.1/24", "127.0.0.1,"):
        groups = "groups_header: X-Groups\n"
        asked = f"auth_header: X-User\n{groups}{ENTRIES}trusted_proxies: '{proxies}'"
        refused[asked] = "is not the address of a proxy: anybody could use any name"
    for content, message in refused.items():
        file.write_text(content)
        with pytest.raises(UsageError, match=re.escape(message)):
            load_settings(tmp_path, {})
    file.write_text(f"{groups}{ENTRIES}trusted_proxies: 127.0.0.1, ::1,10.0.0.0/24\n")
    settings = load_settings(tmp_path, {}, {"auth_header": "X-User"})
    assert (settings.people, settings.require_token) == ({"@research": "team-*"}, True)


def test_a_real_history_is_never_called_made_up(tmp_path):
    (tmp_path / "server.yaml").write_text("demo: true")
    with pytest.raises(UsageError, match="demo is not a key"):
        load_settings(tmp_path, {})


def test_a_database_that_was_mistyped_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path, message in (
        (
            f"{tmp_path}/nope/dir/x.db",
            f"folder {tmp_path}/nope/dir of the database cannot be used: No such",
        ),
        (f"{tmp_path}/file/x.db", "Not a directory"),
        ("x.db", "relative path"),
    ):
        with pytest.raises(UsageError, match=message):
            load_settings(tmp_path, {}, {"database_url": f"sqlite:///{path}"})
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_home_of_another_user_is_refused(tmp_path, monkeypatch):
    def refuse(_path):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    monkeypatch.setattr("pathlib.Path.is_file", refuse)
    with pytest.raises(
        HistoryError, match=f"^{tmp_path}/.* be read: Permission denied; .* ZEUSRUN_HOME"
    ):
        load_settings(tmp_path, {})


def test_the_database_is_not_shown(tmp_path):
    settings = load_settings(tmp_path, {"ZEUSRUN_DATABASE_URL": "postgresql://me:hunter2@host/x"})
    assert "hunter2" not in repr(settings)
