"""The file that a user names for an export: it appears whole, or not at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from zeusrun.errors import UsageError, advice_on
from zeusrun.files.atomic import replace_file

if TYPE_CHECKING:
    from pathlib import Path

_ADVICE = "name a file in a directory that you can write to"


def write_output(path: Path, content: bytes) -> None:
    """Make or replace a file; others may read it as far as the umask allows.

    A link is followed. A pipe or a device is written to: it cannot be replaced.

    Raises:
        UsageError: If the file cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        real = path.resolve()
        fresh = real.with_name(f"{real.name}.{os.getpid()}.tmp")
        replace_file(real, content, fresh=fresh, mode=0o666)
    except OSError as error:
        why = error.strerror or type(error).__name__
        advice = advice_on(error, _ADVICE)
        raise UsageError(f"{path} cannot be written: {why}; {advice}") from error
