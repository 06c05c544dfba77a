"""zeusrun's home: where it is, and whether it can be trusted.

zeusrun runs commands from schedules, notices and job files in the home. So anyone who can write to
the home can do what its user can do.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from zeusrun.errors import HistoryError

if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLDERS = ("", "history", "runs", "schedules", "submits", "notices", "gpus", "shared")
_ROOT = 0


def home_directory(environment: Mapping[str, str]) -> Path:
    """Return zeusrun's home: ``ZEUSRUN_HOME``, else the platform's user state directory."""
    named = environment.get("ZEUSRUN_HOME")
    try:
        path = Path(named).expanduser() if named else platformdirs.user_state_path("zeusrun")
    except RuntimeError as error:  # neither HOME nor an entry in /etc/passwd
        raise HistoryError(
            "zeusrun stores its history in the home directory, but this user has none; "
            "set ZEUSRUN_HOME to an absolute directory"
        ) from error
    if not path.is_absolute():
        raise HistoryError(
            f"ZEUSRUN_HOME is {named!r}, a relative path; set it to an absolute one, such as "
            f"{path.absolute()}"
        )
    return path


def trusted_home(environment: Mapping[str, str]) -> Path:
    """Return zeusrun's home, which need not exist, if only this user and root can write to it.

    Raises:
        HistoryError: If another user owns the home or a folder in it, others can write to it, or
            a file is in its place. The message says how to repair it.
    """
    home = home_directory(environment)
    for name in _FOLDERS:
        folder = home / name
        try:
            status = folder.stat()  # a link to a larger disk is fine: its target is checked
        except NotADirectoryError:
            raise _in_the_way(next(each for each in folder.parents if each.exists())) from None
        except OSError:
            continue  # it does not exist; or using it will raise the error
        if not stat.S_ISDIR(status.st_mode):
            raise _in_the_way(folder)
        fault = find_fault(folder, status, os.geteuid())
        if fault is not None:
            raise HistoryError(fault)
    return home


def _in_the_way(path: Path) -> HistoryError:
    return HistoryError(
        f"{path} is a file where zeusrun needs a directory; move it away, or set ZEUSRUN_HOME to "
        "another directory"
    )


def find_fault(folder: Path, status: os.stat_result, uid: int) -> str | None:
    """Return why a user cannot trust a folder, and what to do; ``None`` if the user can.

    A group may write if it is the private group of the user or the owner, as with a umask of 002,
    or if this machine does not know it, as with a container's volume.
    """
    quoted, me, owner = shlex.quote(str(folder)), _user(uid), _user(status.st_uid)
    may = f"who could run commands as {me} through it"
    if status.st_uid not in {uid, _ROOT}:
        return (
            f"{folder} belongs to {owner}, {may}. Run zeusrun as {owner}, or set ZEUSRUN_HOME "
            f"to a directory of {me}'s own. If it is meant to be {me}'s, check what it contains, "
            f"then: {'' if uid == _ROOT else 'sudo '}chown -R {me} {quoted}"
        )
    if status.st_mode & stat.S_IWOTH:
        writers = "everybody"
    elif status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid, {me, owner, "root"}):
        writers = f"the group {grp.getgrgid(status.st_gid).gr_name}"
    else:
        return None
    sudo = "" if status.st_uid == uid else "sudo "
    repair = f"Check what it contains, then: {sudo}chmod go-w {quoted}. Or set"
    if status.st_mode & stat.S_ISVTX:  # such as /tmp, which is shared on purpose
        repair = "Set"
    return (
        f"{folder} can be written by {writers}, {may}. {repair} ZEUSRUN_HOME to a directory that "
        f"does not exist yet: zeusrun makes it for {me} alone"
    )


def _is_private(gid: int, users: set[str]) -> bool:
    """Whether a group belongs to one of the users and has no other members."""
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return True
    return group.gr_name in users and set(group.gr_mem) <= users


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def limits_directory(home: Path) -> Path:
    """Return the folder of the GPUs' original power limits."""
    return home / "gpus"


def notices_directory(home: Path) -> Path:
    """Return the folder of the notices to deliver."""
    return home / "notices"


ADDRESS_FILE = "address"
"""Contains the address of the server that ``zeusrun connect`` has named."""


def shared_directory(home: Path) -> Path:
    """Return the folder of what this machine keeps of shared histories."""
    return home / "shared"


def runs_directory(home: Path, job: str) -> Path:
    """Return the folder of a job's runs."""
    return home / "runs" / job
