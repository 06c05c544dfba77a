"""Whether zeusrun's home may be trusted.

Schedules, notices and copies of job files lie there, and their commands run as the user who runs
zeusrun: who can write to the home can do all that this user can.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from typing import TYPE_CHECKING

from zeusrun.errors import HistoryError
from zeusrun.launcher.paths import home_directory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_FOLDERS = ("", "history", "runs", "schedules", "submits", "notices", "gpus")
_ROOT = 0


def trusted_home(environment: Mapping[str, str]) -> Path:
    """Return zeusrun's home, which need not exist, if only this user and root can write to it.

    Raises:
        HistoryError: If the home, or a folder of zeusrun in it, belongs to somebody else or can be
            written by others; with the command that mends it.
    """
    home = home_directory(environment)
    for name in _FOLDERS:
        folder = home / name
        try:
            status = folder.stat()  # a link to a larger disk is as good as what it leads to
        except OSError:
            continue  # it does not exist, or whoever uses it says what is wrong
        fault = find_fault(folder, status, os.geteuid())
        if fault is not None:
            raise HistoryError(fault)
    return home


def find_fault(folder: Path, status: os.stat_result, uid: int) -> str | None:
    """Return why a folder cannot be trusted, and what to do; ``None`` if it can be.

    A group that can write is no fault if it is the private group of the user or of the owner, as a
    umask of 002 supposes, or one that this machine does not know, as containers have for a volume.

    Args:
        folder: In the home, or the home itself.
        status: Of the folder.
        uid: Of the user who runs zeusrun.
    """
    quoted, me, owner = shlex.quote(str(folder)), _user(uid), _user(status.st_uid)
    may = f"who could run commands as {me} through it"
    if status.st_uid not in {uid, _ROOT}:
        return (
            f"{folder} belongs to {owner}, {may}. Run zeusrun as {owner}, or set ZEUSRUN_HOME "
            f"to a directory of {me}'s own. If it is meant to be {me}'s, look at what it holds, "
            f"then: {'' if uid == _ROOT else 'sudo '}chown -R {me} {quoted}"
        )
    if status.st_mode & stat.S_IWOTH:
        writers = "everybody"
    elif status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid, {me, owner, "root"}):
        writers = f"the group {grp.getgrgid(status.st_gid).gr_name}"
    else:
        return None
    sudo = "" if status.st_uid == uid else "sudo "
    return (
        f"{folder} can be written by {writers}, {may}. Look at what it holds, then: "
        f"{sudo}chmod go-w {quoted}. Or set ZEUSRUN_HOME to a directory that does not exist yet: "
        f"zeusrun makes it for {me} alone"
    )


def _is_private(gid: int, users: set[str]) -> bool:
    """Whether a group is that of one of the users, and nobody else is in it."""
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
