"""One entry in the user's crontab, which runs a tick every minute. Other lines never change.

The library python-crontab would rewrite them. All functions that run crontab(1) raise
``LaunchError`` if it fails; then the crontab did not change.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from zeusrun.clock import read_clock
from zeusrun.errors import LaunchError, UsageError
from zeusrun.files.lock import FileLock
from zeusrun.launcher.processes.programs import run_briefly
from zeusrun.plain_text import has_control_character

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.schedule.store import Schedules

_CRON_READS_S = 2.0
_LOCK_WAIT_S = 30.0  # each holder waits for cron, at most 2 s
_TRIES = 5
_LATE_S = 180.0
_DAEMONS = {"cron", "crond", "fcron", "anacron", "busybox"}
_OTHERWISE = "or run `zeusrun schedule daemon`"


def build_command(python: str, home: Path, variables: Sequence[str] = ()) -> str:
    """Return the line that cron runs every minute.

    ``python`` is the absolute path of the interpreter that has zeusrun; ``variables``,
    ``NAME=value`` each, are those needed to import zeusrun.

    Raises:
        UsageError: If one contains a control character: text after a line break in the crontab
            would be run as a command.
    """
    words = [f"ZEUSRUN_HOME={home}", *variables]
    for word in (*words, python):
        if has_control_character(word):
            raise UsageError(
                f"{word!r}: a crontab cannot contain a line break or another control character; "
                "use a path without it"
            )
    argv = ["/usr/bin/env", *words, python, "-m", "zeusrun", "schedule", "tick"]
    # A % would end the command (crontab(5)). In "/", no folder of the user shadows a package.
    return f"* * * * * cd / && {shlex.join(argv)}".replace("%", r"\%")


def marker(home: Path) -> bytes:
    """Return the comment line that marks zeusrun's entry."""
    return os.fsencode(f"# zeusrun: runs what `zeusrun schedule list` shows ({home})")


def install(text: bytes, home: Path, command: str) -> bytes:
    """Return a crontab with zeusrun's entry, at its end or where it was."""
    before, after = _around(text, home)
    if before and not before.endswith(b"\n"):
        before += b"\n"
    return before + marker(home) + b"\n" + os.fsencode(command) + b"\n" + after


def uninstall(text: bytes, home: Path) -> bytes:
    """Return a crontab without zeusrun's entry."""
    return b"".join(_around(text, home))


def _around(text: bytes, home: Path) -> tuple[bytes, bytes]:
    """Return the text before and after zeusrun's entry; all of it and nothing if there is none."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if line.startswith(marker(home)):
            rest = lines[number + 1 :]
            if rest and b"zeusrun schedule tick" in rest[0]:  # unless the user has removed it
                del rest[0]
            return b"".join(lines[:number]), b"".join(rest)
    return text, b""


def add_entry(home: Path, command: str) -> None:
    """Put zeusrun's entry into the user's crontab, once."""
    _edit(lambda text: install(text, home, command))


def remove_entry(home: Path) -> None:
    """Remove zeusrun's entry from the user's crontab; without cron there is none."""
    try:
        read_crontab()
    except LaunchError:
        return
    _edit(lambda text: uninstall(text, home))


def find_entry(home: Path) -> list[str]:
    """Return the lines of zeusrun's entry in the user's crontab; without cron there are none."""
    try:
        text = read_crontab()
    except LaunchError:
        return []
    before, after = _around(text, home)
    entry = text[len(before) : len(text) - len(after)]
    return entry.decode(errors="replace").splitlines()


def _edit(change: Callable[[bytes], bytes]) -> None:
    """Change the crontab, if that changes anything.

    crontab(1) replaces the whole table, so one of two writers at once would lose its lines.
    Processes of zeusrun wait for each other, whatever their homes. If another program was faster,
    the table that is read back shows it.

    cron reads changed crontabs as a minute begins, and recognises a change by its second. It never
    sees a change that is made in the second in which it reads. So wait until that second is over.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # without a lock, too, it is read back
            name = f"zeusrun-crontab-{os.getuid()}.lock"
            lock = held.enter_context(FileLock(Path(tempfile.gettempdir(), name)))
            lock.acquire(_LOCK_WAIT_S)
        tries = 0
        while change(before := read_crontab()) != before:
            if tries == _TRIES:
                raise LaunchError("the crontab keeps no change: another program writes it")
            time.sleep(max(_CRON_READS_S - read_clock() % 60.0, 0.0))
            write_crontab(change(read_crontab()))
            tries += 1


def read_crontab() -> bytes:
    """Return the user's crontab; empty if there is none."""
    code, text, complaint = _crontab("-l")
    if code == 0:
        return text
    if "no crontab for" in complaint:
        return b""
    raise LaunchError(f"the crontab cannot be read: {complaint or f'crontab ended with {code}'}")


def write_crontab(text: bytes) -> None:
    """Replace the user's crontab; an empty one is removed."""
    code, _, complaint = _crontab("-", content=text) if text else _crontab("-r")
    if code != 0:
        raise LaunchError(
            f"the crontab did not change: {complaint or f'crontab ended with {code}'}"
        )


def _crontab(*arguments: str, content: bytes = b"") -> tuple[int, bytes, str]:
    try:
        return run_briefly(["crontab", *arguments], content)
    except OSError as error:
        raise LaunchError(
            "there is no crontab here; run `zeusrun schedule daemon` instead"
        ) from error


def find_neglect(schedules: Schedules, now: float) -> tuple[str, str] | None:
    """Return why the schedules do not run, and what to do; ``None`` if they run or will run."""
    try:
        ticked: float | None = schedules.heartbeat.stat().st_mtime
    except OSError:
        ticked = None
    if ticked is not None and abs(now - ticked) < _LATE_S:
        return None
    since = "" if ticked is None else f" since {datetime.fromtimestamp(ticked):%Y-%m-%d %H:%M}"  # noqa: DTZ006 - for people, here
    nothing = f"nothing starts scheduled jobs{since}"
    try:
        has_entry = marker(schedules.directory.parent) in read_crontab()
    except LaunchError as error:
        what, _, advice = str(error).partition("; ")
        return f"{nothing}: {what}", advice or f"repair that, {_OTHERWISE}"
    if not has_entry:
        what = "the crontab has no entry of zeusrun"
        return f"{nothing}: {what}", f"`zeusrun schedule add JOB.yaml` adds it, {_OTHERWISE}"
    names = {process.info["name"] for process in psutil.process_iter(["name"])}
    if not names & _DAEMONS:
        what = "the crontab has the entry, but no cron daemon runs here"
        return f"{nothing}: {what}", f"start it (`service cron start`), {_OTHERWISE}"
    if ticked is None:
        return None  # cron reads its tables once a minute
    return f"nothing has started scheduled jobs{since}, though cron runs", "see the log of cron"
