"""A submit that is queued in Slurm: its files under the home, and its batch script."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import shutil
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from zeusrun.clock import read_clock
from zeusrun.errors import UsageError, writes_to
from zeusrun.files.private import build_known, check_version, make_folder, read_file, replace_file
from zeusrun.launcher.request import Request
from zeusrun.run_on.slurm.allocation import EARLY_S, lead_s
from zeusrun.run_on.slurm.section import Slurm, time_s

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.jobfile.spec import JobSpec

_VERSION = 1
_MAX_BYTES = 64 << 20  # a result contains the trials of a recurrence
_START_S = 600.0  # of a job besides its training: to start, and to record
_KEPT_S = 30 * 86_400.0  # what a submit printed, for people who look for a failure


@dataclass(frozen=True)
class QueuedFiles:
    """The files of one submit that is queued in Slurm."""

    folder: Path

    @property
    def output(self) -> Path:
        """What the batch step prints."""
        return self.folder / "output.log"

    def write(self, name: str, content: bytes) -> None:
        """Write a file for the owner alone; raises ``HistoryError``."""
        path = self.folder / name
        with writes_to(path):
            make_folder(self.folder)
            replace_file(path, content, durable=False)

    def write_request(self, request: Request) -> None:
        """Write what the batch step does; raises ``HistoryError``."""
        content = json.dumps({"version": _VERSION, **asdict(request)})
        self.write("request.json", content.encode())

    def read_request(self) -> Request:
        """Return what the batch step does; raises ``UsageError`` if that cannot be read."""
        path = self.folder / "request.json"
        try:
            record = json.loads(read_file(path, _MAX_BYTES))
            check_version(record, _VERSION, path, UsageError)
            return build_known(Request, record, overrides=tuple(record["overrides"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} cannot be read: {error}; submit the job again") from error

    def remove_result(self) -> None:
        """Remove how the submit ended before."""
        with contextlib.suppress(OSError):
            (self.folder / "result.json").unlink()

    def read_result(self) -> dict[str, Any] | None:
        """Return how the submit ended; ``None`` if it has not."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(read_file(self.folder / "result.json", _MAX_BYTES))
            return found if isinstance(found, dict) else None
        return None


def new_files(home: Path) -> QueuedFiles:
    """Return the files of a new submit, which do not exist yet; remove those of a month ago."""
    with contextlib.suppress(OSError):  # another submit does the same
        for output in (home / "slurm").glob("*/output.log"):
            # A job that Slurm has started again writes its output alone.
            if output.stat().st_mtime < read_clock() - _KEPT_S:
                shutil.rmtree(output.parent, ignore_errors=True)
    return QueuedFiles(home / "slurm" / uuid4().hex[:12])


def find_files(home: Path, allocation: str) -> QueuedFiles | None:
    """Return the files of the submit that a job of Slurm runs; ``None`` if they are gone."""
    with contextlib.suppress(OSError):
        for path in sorted((home / "slurm").iterdir(), key=os.path.getmtime, reverse=True):
            with contextlib.suppress(UsageError):
                if QueuedFiles(path).read_request().allocation == allocation:
                    return QueuedFiles(path)
    return None


def limit_s(spec: JobSpec) -> float | None:
    """Return the time limit that a job asks for, in seconds; ``None``: that of the partition."""
    slurm = Slurm.of(spec.run_on)
    if slurm is not None and slurm.time is not None:
        return time_s(str(slurm.time))
    if spec.timeout_s is None:
        return None
    return spec.timeout_s + lead_s(spec.launch.grace_period_s) + EARLY_S + _START_S


def _quote(word: str) -> str:
    """Quote a word for sbatch: it knows no quote within single quotes, and ``#`` cuts a line."""
    if re.fullmatch(r"[\w%+,./:=@\[\]-]*", word):
        return word
    return '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'


def build_script(spec: JobSpec, files: QueuedFiles, home: Path) -> str:
    """Return the batch script of a job: options of sbatch, the user's lines, and zeusrun.

    zeusrun takes the place of the shell, so that it gets the signals of the batch step.
    """
    slurm, seconds = Slurm.of(spec.run_on), limit_s(spec)
    if slurm is None:
        raise ValueError(f"{spec.name} does not run in Slurm")
    options = {
        "job-name": spec.name,
        "nodes": spec.launch.nnodes or 1,
        "ntasks-per-node": 1,
        "cpus-per-task": slurm.cpus_per_task,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "gres": slurm.gres,
        "constraint": slurm.constraint,
        "time": None if seconds is None else math.ceil(seconds / 60),
        "signal": f"B:USR1@{math.ceil(lead_s(spec.launch.grace_period_s, seconds))}",
        "open-mode": "append",
        "output": str(files.output).replace("%", "%%"),  # "%" begins a pattern of Slurm
    }
    given = [(name, value) for name, value in options.items() if value is not None]
    lines = ["#!/bin/bash"]
    lines += [f"#SBATCH --{name}={_quote(str(value))}" for name, value in given]
    lines.append("#SBATCH --requeue" if slurm.requeue else "#SBATCH --no-requeue")
    extra = ([_quote(word) for word in shlex.split(option)] for option in slurm.extra)
    lines += [f"#SBATCH {' '.join(words)}" for words in extra]
    lines.append(f"export ZEUSRUN_HOME={shlex.quote(str(home))}")
    lines += ["set -e", slurm.setup.rstrip()] if slurm.setup.strip() else []
    # Without -P, a random.py in the working directory would replace Python's.
    safe = "-P " if sys.version_info >= (3, 11) else ""
    python = slurm.python or shlex.quote(sys.executable)
    lines.append(f"cd / && exec {python} {safe}-m zeusrun batch {files.folder.name}")
    return "\n".join(lines) + "\n"
