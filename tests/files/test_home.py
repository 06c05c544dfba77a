"""Whose home it is, and who may write to it."""

from __future__ import annotations

import grp
import os
import pwd
import stat

import pytest

from zeusrun.errors import ExitCode, HistoryError
from zeusrun.files.home import find_fault, trusted_home

ME, OTHER = 1000, 1001
GROUPS = {
    100: ("users", []),
    1000: ("me", []),
    2001: ("me", ["me", "other"]),
    0: ("root", ["root"]),
}


@pytest.fixture(autouse=True)
def accounts(monkeypatch):
    """Let this machine have two users and some groups."""
    users = {0: "root", ME: "me", OTHER: "other"}

    def user(uid):
        return pwd.struct_passwd((users[uid], "x", uid, uid, "", "", ""))

    def group(gid):
        name, members = GROUPS[gid]
        return grp.struct_group((name, "x", gid, members))

    monkeypatch.setattr("zeusrun.files.home.pwd.getpwuid", user)
    monkeypatch.setattr("zeusrun.files.home.grp.getgrgid", group)


def fault(tmp_path, *, uid=ME, owner=ME, gid=ME, mode=0o700):
    status = os.stat_result((stat.S_IFDIR | mode, 0, 0, 0, owner, gid, 0, 0, 0, 0))
    return find_fault(tmp_path, status, uid)


@pytest.mark.parametrize(
    "of",
    [
        {},
        {"mode": 0o755},  # one that the user made: others may look into it
        {"mode": 0o2775},  # umask 002, with the user's private group
        {"owner": 0, "mode": 0o755},  # root may do anything in any case
        {"owner": 0, "gid": 2000, "mode": 0o2775},  # a volume of Kubernetes with fsGroup
        {"owner": 0, "gid": 0, "mode": 0o775},  # OpenShift: any user, group root
        {"uid": 4242, "owner": 4242, "gid": 4242, "mode": 0o775},  # a container without accounts
        {"uid": 0, "owner": 0, "gid": 0},
    ],
)
def test_what_only_the_user_can_write_is_trusted(tmp_path, of):
    assert fault(tmp_path, **of) is None


@pytest.mark.parametrize(
    ("of", "said", "mended_by"),
    [
        ({"owner": OTHER}, "belongs to other, who could run commands as me", "sudo chown"),
        ({"uid": 0, "owner": ME}, "belongs to me, who could run commands as root", "chown"),
        ({"uid": 0, "owner": 4242}, "belongs to 4242", "chown -R root"),
        ({"mode": 0o777}, "can be written by everybody", ": chmod go-w"),
        ({"mode": 0o777, "owner": 0}, "can be written by everybody", ": sudo chmod go-w"),
        ({"mode": 0o770, "gid": 100}, "can be written by the group users", "chmod go-w"),
        ({"mode": 0o770, "gid": 2001}, "can be written by the group me", "chmod go-w"),
    ],
)
def test_what_others_can_write_is_not_trusted_and_the_remedy_is_named(
    tmp_path, of, said, mended_by
):
    text = fault(tmp_path, **of)
    assert said in text
    assert mended_by in text
    assert str(tmp_path) in text


@pytest.mark.parametrize("owner", [0, ME])
def test_a_directory_that_is_shared_on_purpose_is_not_to_be_closed(tmp_path, owner):
    text = fault(tmp_path, mode=0o1777, owner=owner)
    assert "can be written by everybody" in text
    assert "chmod" not in text
    assert text.endswith(
        "Set ZEUSRUN_HOME to a directory that does not exist yet: zeusrun makes it for me alone"
    )


@pytest.mark.parametrize("name", ["", "notices", "schedules", "runs"])
def test_the_home_and_the_folders_in_it_are_looked_at(tmp_path, name):
    environment = {"ZEUSRUN_HOME": str(tmp_path / "home")}
    assert trusted_home(environment) == tmp_path / "home"  # it is made later
    (tmp_path / "home" / "notices").mkdir(parents=True)
    (tmp_path / "home" / "schedules").mkdir()
    (tmp_path / "home" / "runs").symlink_to(tmp_path)
    (tmp_path / "home").chmod(0o700)
    tmp_path.chmod(0o700)
    assert trusted_home(environment) == tmp_path / "home"
    (tmp_path / "home" / name).chmod(0o707)
    with pytest.raises(HistoryError, match="can be written by everybody") as refused:
        trusted_home(environment)
    assert refused.value.exit_code == ExitCode.HISTORY
