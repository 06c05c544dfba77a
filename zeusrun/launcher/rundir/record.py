"""``trial.json``: the trial in its own run directory, apart from the history.

If the history cannot be written, the next submit reads the outcome from here. The outcome is
written into a file that was filled in advance, so that a full disk cannot prevent it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from typing import TYPE_CHECKING

from zeusrun.files.private import open_for_writing, read_file, write_file
from zeusrun.trial import Outcome, Trial

if TYPE_CHECKING:
    from typing import BinaryIO

    from zeusrun.launcher.rundir.layout import RunPaths

_RESERVE_BYTES = 64 << 10  # 40 epochs take about 3 KiB, 600 epochs 40 KiB
_MAX_BYTES = 256 << 20  # a script may put anything in its place


def reserve_record(paths: RunPaths, trial: Trial) -> None:
    """Write the dispatched trial, and reserve space for its outcome.

    Raises:
        OSError: If they cannot be written.
    """
    write_file(paths.trial, _encode(trial))
    with _open(paths, os.O_TRUNC) as file:
        file.write(b" " * _RESERVE_BYTES)
        file.flush()
        os.fsync(file.fileno())


def write_record(paths: RunPaths, trial: Trial) -> bool:
    """Replace the dispatched trial by the finished one; return whether it could be written."""
    content = _encode(trial)
    try:
        with _open(paths) as file:
            file.write(content)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        paths.reserve.replace(paths.trial)
    except OSError:
        with contextlib.suppress(OSError):
            paths.reserve.unlink()
        return False
    return True


def read_record(paths: RunPaths) -> Trial | None:
    """Return the trial that a run directory contains; ``None`` if it cannot be read."""
    try:
        return Trial.from_json(json.loads(read_file(paths.trial, _MAX_BYTES)))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def read_outcome(paths: RunPaths) -> Outcome | None:
    """Return the outcome that a launcher wrote here; ``None`` if there is none."""
    trial = read_record(paths)
    if trial is None or not trial.status.finished:
        return None
    return Outcome(**{f.name: getattr(trial, f.name) for f in dataclasses.fields(Outcome)})


def has_begun(paths: RunPaths) -> bool:
    """Whether a run directory contains anything worth keeping. A link counts as begun."""
    ran = (paths.sidecar, paths.torchrun_log, paths.run_dir / "part1")
    if paths.run_dir.is_symlink() or any(path.exists() for path in ran):
        return True
    trial = read_record(paths)
    return trial is not None and (trial.status.finished or trial.preemptions > 0)


def _open(paths: RunPaths, flags: int = 0) -> BinaryIO:
    descriptor = open_for_writing(paths.reserve, os.O_WRONLY | os.O_CREAT | flags)
    return open(descriptor, "wb")  # noqa: PTH123 - a descriptor


def _encode(trial: Trial) -> bytes:
    return json.dumps(trial.to_json(), indent=1).encode() + b"\n"
