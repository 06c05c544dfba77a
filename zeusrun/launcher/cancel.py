"""How another zeusrun asks the launcher of a trial to stop it: a file in the run directory."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from zeusrun.private_files import read_file, write_file

if TYPE_CHECKING:
    from zeusrun.launcher.paths import RunPaths

_GENTLY, _NOW, _REPLACED = b"gently", b"now", b"replaced"
REPLACED_BY_NEWER = "a newer run of the job took its place"
_LONGEST = len(_REPLACED)


def ask_to_cancel(paths: RunPaths, *, at_once: bool = False, replaced: bool = False) -> None:
    """Ask the launcher of a trial to stop it, as Ctrl-C does: once, or twice for at once.

    Args:
        paths: Of the trial.
        at_once: Without the grace period.
        replaced: It is to make room for a newer run.

    Raises:
        OSError: If the run directory cannot be written.
    """
    fresh = paths.cancel.with_suffix(f".{os.getpid()}")
    write_file(fresh, _NOW if at_once else _REPLACED if replaced else _GENTLY)
    fresh.replace(paths.cancel)


def read_cancel(paths: RunPaths) -> int | None:
    """Return how many interrupts are asked for, 1 or 2; ``None`` while nobody asks."""
    with contextlib.suppress(OSError):
        return 2 if read_file(paths.cancel, _LONGEST) == _NOW else 1
    return None


def why_cancelled(paths: RunPaths) -> str:
    """Say who has asked."""
    with contextlib.suppress(OSError):
        if read_file(paths.cancel, _LONGEST) == _REPLACED:
            return REPLACED_BY_NEWER
    return "cancelled by 'zeusrun cancel'"
