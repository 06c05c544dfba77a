"""Finds and removes what zeusrun keeps in its home, and nothing else."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.errors import HistoryError, UsageError
from zeusrun.files.home import ADDRESS_FILE
from zeusrun.files.lock import is_locked
from zeusrun.history.http.client import TOKEN_FILE, read_address
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.launcher.rundir.layout import RunPaths, read_record
from zeusrun.launcher.rundir.ownership import RunLock
from zeusrun.maintenance.retention import measure_folder
from zeusrun.run_on.registry import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# In the order of their removal. A home is recognised by its history, so that goes last.
_CONTENT = {
    "schedules": "schedules and their logs",
    "submits": "the queue of submits",
    "notices": "notices that are not delivered yet",
    "gpus": "original power limits",
    **dict.fromkeys(BACKENDS, "jobs of a scheduler"),
    "runs": "runs: logs, metrics, checkpoints",
    "shared": "the local copy of shared histories",
    TOKEN_FILE: "the token for a server",
    f"{TOKEN_FILE}.tmp": "a token that was being written",
    ADDRESS_FILE: "the address of that server",
    "history": "histories",
}


class Part(NamedTuple):
    """A file or a folder in the home; a link is removed, and what it leads to stays."""

    path: Path
    what: str
    size_bytes: int


class Found(NamedTuple):
    """What zeusrun has written to this machine, and what else is in its home."""

    home: Path
    parts: list[Part]
    others: list[str]
    entry: list[str]  # lines of the crontab
    limits: list[str]  # UUIDs of GPUs whose power limit a dead run has left
    server: str | None  # to which the home is connected


def check_home(home: Path, *, known: bool = False) -> None:
    """Raise ``UsageError`` unless a directory is certainly a home of zeusrun.

    ``known``: something outside it shows that.
    """
    real, users = home.resolve(), {os.environ.get("HOME") or "/"}
    with contextlib.suppress(KeyError):
        users.add(pwd.getpwuid(os.getuid()).pw_dir)
    for user in (Path("/"), *(Path(each).resolve() for each in users)):
        if user.is_relative_to(real):
            raise UsageError(
                f"ZEUSRUN_HOME is {home}, and {user} is in it: nothing is removed. Set it to the "
                "directory that zeusrun uses for itself alone"
            )
    if not (known or any(_signs(home))):
        raise UsageError(
            f"{home} contains no history of zeusrun: nothing is removed. If zeusrun used another "
            "directory, set ZEUSRUN_HOME to it"
        )


def _signs(home: Path) -> Iterator[object]:
    """Yield values, of which one is true if zeusrun has used a directory as its home."""
    yield (read_address(home) or "").startswith("http")
    store = TinyDBHistory(home / "history")
    for job in store.jobs():
        with contextlib.suppress(HistoryError):  # if it is damaged, look at the runs
            yield store.count(job)
    yield from map(read_record, _runs(home))


def _runs(home: Path) -> list[RunPaths]:
    return [RunPaths(path) for path in sorted((home / "runs").glob("*/*")) if path.is_dir()]


def find_parts(home: Path) -> tuple[list[Part], list[str]]:
    """Return what zeusrun has written into its home, and the names of everything else there."""
    try:
        names = {path.name for path in home.iterdir()}
    except FileNotFoundError:
        return [], []
    found = [_describe(home / each, what) for each, what in _CONTENT.items() if each in names]
    return found, sorted(names - set(_CONTENT))


def _describe(path: Path, what: str) -> Part:
    if path.is_symlink():
        return Part(path, f"a link to {path.resolve()}, which stays", 0)
    return Part(path, what, measure_folder(path) if path.is_dir() else path.lstat().st_size)


def find_busy(home: Path) -> list[str]:
    """Return what goes on in a home, and how each is ended; raises ``HistoryError``."""
    going = [paths.run_dir for paths in _runs(home) if RunLock(paths).is_held()]
    busy = [f"{path.name} goes on: `zeusrun cancel {path.name}` stops it" for path in going]
    jobs = {path.parent.name for path in going}
    try:
        tickets = Tickets(home).present()
    except OSError as error:
        raise HistoryError(f"{error.filename} cannot be read: {error.strerror}") from error
    for ticket in tickets:
        how = f"Ctrl-C in its terminal, or `kill {ticket.pid}` on {ticket.host},"
        if ticket.allocation:
            how = f"`zeusrun cancel {ticket.allocation}`"
        if ticket.state != "running" or ticket.job not in jobs:
            busy.append(f"a submit of {ticket.job} waits: {how} ends it")
    locks = [each for each in (home / "schedules").glob("*@*.lock") if is_locked(each) is not False]
    begun = {lock.name.rpartition("@")[0] for lock in locks} - jobs
    busy += [f"a scheduled run of {job} begins: `zeusrun cancel {job}` stops it" for job in begun]
    if is_locked(home / "schedules" / ".daemon.lock") is not False:
        busy.append("`zeusrun schedule daemon` runs: Ctrl-C in its terminal ends it")
    return busy


def remove_parts(home: Path, parts: Sequence[Part]) -> None:
    """Remove parts of a home, and the home if it is empty then. No link is followed.

    Raises:
        HistoryError: If something cannot be removed; another call goes on with the rest.
    """
    for part in parts:
        try:
            if part.path.is_dir() and not part.path.is_symlink():
                shutil.rmtree(part.path)
            else:
                part.path.unlink(missing_ok=True)
        except OSError as error:
            raise HistoryError(
                f"{error.filename} cannot be removed: {error.strerror}; give yourself access, "
                "then run `zeusrun uninstall` again"
            ) from error
    with contextlib.suppress(OSError):  # something else is in it, or it is a link
        home.rmdir()
