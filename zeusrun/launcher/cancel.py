"""How another zeusrun asks the launcher of a trial to stop it: a file in the run directory."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zeusrun.launcher.paths import RunPaths

_GENTLY, _NOW = b"gently", b"now"


def ask_to_cancel(paths: RunPaths, *, at_once: bool) -> None:
    """Ask the launcher of a trial to stop it, as Ctrl-C does: once, or twice for at once.

    Raises:
        OSError: If the run directory cannot be written.
    """
    fresh = paths.cancel.with_suffix(f".{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, _NOW if at_once else _GENTLY)
    finally:
        os.close(descriptor)
    fresh.replace(paths.cancel)


def read_cancel(paths: RunPaths) -> int | None:
    """Return how many interrupts are asked for, 1 or 2; ``None`` while nobody asks."""
    with contextlib.suppress(OSError):
        return 2 if paths.cancel.read_bytes().startswith(_NOW) else 1
    return None
