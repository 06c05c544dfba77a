"""One entry in the user's crontab, which starts due jobs every minute. Other lines never change.

python-crontab is not used: it rewrites all lines (spaces, comments, ``@daily``, even lines that it
does not understand).
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
_EMPTY = "no crontab for"  # printed by crontab -l if there is none
_CRON_LOOKS_S = 2.0


def build_command(python: str, home: Path, variables: Sequence[str] = ()) -> str:
    """Return the line that cron runs every minute.

    Args:
        python: The interpreter that has zeusrun; absolute.
        home: The home of zeusrun.
        variables: ``NAME=value`` each, needed to import it.

    Raises:
        UsageError: If one of them contains a control character.
    """
    words = check_words(python, home, variables)
    argv = ["/usr/bin/env", *words, python, "-m", "zeusrun", "schedule", "tick"]
    # A % would end the command (crontab(5)). In "/", no folder of the user shadows a package.
    return f"* * * * * cd / && {shlex.join(argv)}".replace("%", r"\%")


def check_words(python: str, home: Path, variables: Sequence[str]) -> list[str]:
    """Return the variables of the command that starts due jobs, including the home.

    A crontab and a systemd unit have one line for it. Text after a line break would be a line of
    its own and run as a command.

    Raises:
        UsageError: If a value or the interpreter contains a control character.
    """
    words = [f"ZEUSRUN_HOME={home}", *variables]
    for word in (*words, python):
        if has_control_character(word):
            name, found, value = word.partition("=")
            what = f"{name} ({value!r})" if found and word in words else f"{word!r}"
            raise UsageError(
                f"{what}: a crontab or a systemd unit cannot contain a line break or another "
                "control character; use a path without it"
            )
    return words


def marker(home: Path) -> bytes:
    """Return the comment line that marks zeusrun's entry."""
    return os.fsencode(f"# zeusrun: runs what `zeusrun schedule list` shows ({home})")


def install(text: bytes, home: Path, command: str) -> bytes:
    """Return a crontab with zeusrun's entry, at its end or where it was."""
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
    """Return a crontab without zeusrun's entry; the other lines stay as they are."""
    place = _find(text, home)
    if place is None:
        return text
    start, end, joined = place
    before = text[: start - 1] if joined and end == len(text) else text[:start]
    return before + text[end:]


def _find(text: bytes, home: Path) -> tuple[int, int, bool] | None:
    """Return start and end of the entry, and whether we added the line end before it."""
    position, lines = 0, text.splitlines(keepends=True)
    own = marker(home)
    for number, line in enumerate(lines):
        bare = line.rstrip(b"\r\n")
        if bare in (own, own + _JOINED):
            end = position + len(line)
            following = lines[number + 1] if number + 1 < len(lines) else b""
            if b"zeusrun schedule tick" in following:  # otherwise somebody has removed it
                end += len(following)
            return position, end, bare != own
        position += len(line)
    return None


def add_entry(home: Path, command: str) -> None:
    """Put zeusrun's entry into the user's crontab, once.

    Args:
        home: The home of zeusrun.
        command: What ``build_command`` returns.

    Raises:
        LaunchError: If that is not possible; the crontab did not change.
    """
    _edit(lambda text: install(text, home, command))


def remove_entry(home: Path) -> None:
    """Remove zeusrun's entry from the user's crontab; without cron there is none.

    Raises:
        LaunchError: If it cannot be written; it did not change.
    """
    try:
        read_crontab()
    except LaunchError:
        return
    _edit(lambda text: uninstall(text, home))


def _edit(change: Callable[[bytes], bytes]) -> None:
    """Change the crontab, if that changes anything.

    cron looks for changes as a minute begins, and recognises a change by its second. It never sees
    a change that is made in the second in which it looks. So wait until that second is over.
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
        raise LaunchError(
            f"the crontab did not change: {complaint or f'crontab ended with {code}'}"
        )


def _crontab(*arguments: str, content: bytes = b"") -> tuple[int, bytes, str]:
    try:
        return run_briefly(["crontab", *arguments], content)
    except OSError as error:
        raise LaunchError(
            "there is no crontab here; run `zeusrun schedule daemon` instead, or use systemd: "
            "`zeusrun schedule export --systemd`"
        ) from error
