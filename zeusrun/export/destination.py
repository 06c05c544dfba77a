"""The file that a user names for an export: it appears whole, or not at all."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from zeusrun.errors import SHORTAGES, ExportError, UsageError
from zeusrun.files.private import replace_file

if TYPE_CHECKING:
    from pathlib import Path

_ELSEWHERE = "name a file in a directory that you can write to"


def check_output(path: Path, flag: str) -> None:
    """Check, before what takes long, that a file can be made or replaced.

    Raises:
        UsageError: If not; the message names the flag of the file.
    """
    try:
        can_be = not path.is_dir() and os.access(path.resolve().parent, os.W_OK)
    except (OSError, RuntimeError):  # RuntimeError: links in a circle
        can_be = False
    if not can_be:
        raise UsageError(f"{flag} {path} cannot be written; {_ELSEWHERE}")


def write_output(path: Path, content: bytes) -> None:
    """Make or replace a file. A new one may be read by others, as far as the umask allows.

    A link is followed. A pipe or a device is written to: it cannot be replaced.

    Raises:
        UsageError: If the file cannot be written.
        ExportError: If the disk is full, for example.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            real = path.resolve()
            fresh = real.with_name(f"{real.name}.{os.getpid()}.tmp")
            mode = stat.S_IMODE(real.stat().st_mode) if real.exists() else 0o666
            replace_file(real, content, fresh=fresh, mode=mode)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        number, why = getattr(error, "errno", None), getattr(error, "strerror", None)
        failure = f"{path} cannot be written: {why or error}"
        if number in SHORTAGES:
            raise ExportError(f"{failure}; {SHORTAGES[number]}") from error
        raise UsageError(f"{failure}; {_ELSEWHERE}") from error
