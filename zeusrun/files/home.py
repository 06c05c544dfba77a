"""zeusrun's home: where it is, which folders it holds, and whether it can be trusted.

Schedules, notices and copies of job files lie there, and their commands run as the user who runs
zeusrun: who can write to the home can do all that this user can.
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

from zeusrun.errors import HistoryError, advice_on

if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLDERS = ("", "history", "runs", "schedules", "submits", "notices", "gpus")
_ROOT = 0


def home_directory(environment: Mapping[str, str]) -> Path:
    """Return zeusrun's home: ``ZEUSRUN_HOME``, else the platform's user state directory."""
    named = environment.get("ZEUSRUN_HOME")
    try:
        path = Path(named).expanduser() if named else platformdirs.user_state_path("zeusrun")
    except RuntimeError as error:  # neither HOME nor an entry in /etc/passwd
        raise HistoryError(
            "zeusrun keeps its history in the home directory, but this user has none; "
            "set ZEUSRUN_HOME to an absolute directory"
        ) from error
    return path.absolute()


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
    if status.st_mode & stat.S_ISVTX:  # such as /tmp, which is shared on purpose
        return (
            f"{folder} can be written by {writers}, {may}. Set ZEUSRUN_HOME to a directory of "
            f"{me}'s own; one that does not exist yet is made"
        )
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


def limits_directory(home: Path) -> Path:
    """Return the folder of the power limits found before any was changed."""
    return home / "gpus"


def notices_directory(home: Path) -> Path:
    """Return the folder of what is still to be delivered."""
    return home / "notices"


def runs_directory(home: Path, job: str) -> Path:
    """Return the folder that holds a job's runs."""
    return home / "runs" / job


def unwritable_home(home: Path, error: OSError) -> HistoryError:
    """Return the error for a home that refuses to be written."""
    advice = advice_on(error, "make it writable, or set ZEUSRUN_HOME to a directory that is")
    return HistoryError(
        f"{error.filename or home}: {error.strerror or error}; zeusrun keeps its history and runs "
        f"under {home}: {advice}"
    )
