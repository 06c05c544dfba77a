"""One entry in a user's crontab, which starts what is due every minute; all else is left as it is.

python-crontab is not used for this: it writes the lines of others anew (spaces, comments,
``@daily``, even lines that it does not understand), and they are not ours.
"""

from __future__ import annotations

import os
import shlex
import time
from typing import TYPE_CHECKING

from zeusrun.clock import read_clock
from zeusrun.errors import LaunchError, UsageError
from zeusrun.launcher.processes.background import run_briefly
from zeusrun.plain_text import has_control_character

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_JOINED = b" (after a line without an end)"
_EMPTY = "no crontab for"  # crontab -l, where there is none
_CRON_LOOKS_S = 2.0


def build_command(python: str, home: Path, variables: Sequence[str] = ()) -> str:
    """Return the line that cron runs every minute.

    Args:
        python: The interpreter that has zeusrun; absolute.
        home: Zeusrun's.
        variables: ``NAME=value`` each, needed to import it.

    Raises:
        UsageError: If one of them holds a control character.
    """
    told = check_words(python, home, variables)
    argv = ["/usr/bin/env", *told, python, "-m", "zeusrun", "schedule", "tick"]
    # A % would end the command (crontab(5)). At "/", no folder of the user is taken for a package.
    return f"* * * * * cd / && {shlex.join(argv)}".replace("%", r"\%")


def check_words(python: str, home: Path, variables: Sequence[str]) -> list[str]:
    """Return the variables of the command that starts what is due, the home among them.

    A crontab and a unit of systemd have one line for it: what follows the end of a line would be
    a line of its own, and run as a command.

    Raises:
        UsageError: If a value, or the interpreter, holds a control character.
    """
    told = [f"ZEUSRUN_HOME={home}", *variables]
    for word in (*told, python):
        if has_control_character(word):
            name, found, value = word.partition("=")
            what = f"{name} ({value!r})" if found and word in told else f"{word!r}"
            raise UsageError(
                f"{what}: a line break or another control character cannot stand in a crontab or "
                "a systemd unit; use a path without it"
            )
    return told


def marker(home: Path) -> bytes:
    """Return the line before zeusrun's own, by which it is found again."""
    return os.fsencode(f"# zeusrun: runs what `zeusrun schedule list` shows ({home})")


def install(text: bytes, home: Path, command: str) -> bytes:
    """Return a crontab with zeusrun's entry in it, at its end or where it was."""
    entry = marker(home) + b"\n" + os.fsencode(command) + b"\n"
    place = _find(text, home)
    if place is not None:
        start, end, joined = place
        entry = entry.replace(b"\n", _JOINED + b"\n", 1) if joined else entry
        return text[:start] + entry + text[end:]
    if text and not text.endswith(b"\n"):
        return text + b"\n" + entry.replace(b"\n", _JOINED + b"\n", 1)
    return text + entry


def uninstall(text: bytes, home: Path) -> bytes:
    """Return a crontab without zeusrun's entry, as it was before."""
    place = _find(text, home)
    if place is None:
        return text
    start, end, joined = place
    before = text[: start - 1] if joined and end == len(text) else text[:start]
    return before + text[end:]


def _find(text: bytes, home: Path) -> tuple[int, int, bool] | None:
    """Return where the entry begins and ends, and whether an end of line is ours, too."""
    position, lines = 0, text.splitlines(keepends=True)
    own = marker(home)
    for number, line in enumerate(lines):
        bare = line.rstrip(b"\r\n")
        if bare in (own, own + _JOINED):
            end = position + len(line)
            following = lines[number + 1] if number + 1 < len(lines) else b""
            if b"zeusrun schedule tick" in following:  # else somebody has taken it out
                end += len(following)
            return position, end, bare != own
        position += len(line)
    return None


def add_entry(home: Path, command: str) -> None:
    """Put zeusrun's entry into the user's crontab, once.

    Args:
        home: Zeusrun's.
        command: What ``build_command`` returns.

    Raises:
        LaunchError: If that is not possible; the crontab is as it was.
    """
    _edit(lambda text: install(text, home, command))


def remove_entry(home: Path) -> None:
    """Take zeusrun's entry out of the user's crontab; without cron there is nothing to take out.

    Raises:
        LaunchError: If it cannot be written; it is as it was.
    """
    try:
        read_crontab()
    except LaunchError:
        return
    _edit(lambda text: uninstall(text, home))


def _edit(change: Callable[[bytes], bytes]) -> None:
    """Change the crontab, unless there is nothing to change.

    cron looks for changes as a minute begins and tells them by their second: of two in that
    second, it never sees the later one. So none is made then.
    """
    before = read_crontab()
    if change(before) != before:
        time.sleep(max(_CRON_LOOKS_S - read_clock() % 60.0, 0.0))
        write_crontab(change(read_crontab()))


def read_crontab() -> bytes:
    """Return the user's crontab; empty if there is none.

    Raises:
        LaunchError: If it cannot be read.
    """
    code, text, complaint = _crontab("-l")
    if code == 0:
        return text
    if _EMPTY in complaint:
        return b""
    raise LaunchError(f"the crontab cannot be read: {complaint or f'crontab ended with {code}'}")


def write_crontab(text: bytes) -> None:
    """Replace the user's crontab; an empty one is removed.

    Raises:
        LaunchError: If it cannot be written.
    """
    code, _, complaint = _crontab("-", content=text) if text else _crontab("-r")
    if code != 0:
        raise LaunchError(f"the crontab is as it was: {complaint or f'crontab ended with {code}'}")


def _crontab(*arguments: str, content: bytes = b"") -> tuple[int, bytes, str]:
    try:
        return run_briefly(["crontab", *arguments], content)
    except OSError as error:
        raise LaunchError(
            "there is no crontab here; run `zeusrun schedule daemon` in its place, or let systemd "
            "do it: `zeusrun schedule export --systemd`"
        ) from error
