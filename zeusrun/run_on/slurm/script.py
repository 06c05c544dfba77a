"""The batch script of a submit that Slurm starts."""

from __future__ import annotations

import math
import re
import shlex
import sys
from typing import TYPE_CHECKING

from zeusrun.jobfile.validators import duration_s
from zeusrun.run_on.slurm.allocation import EARLY_S, lead_s
from zeusrun.run_on.slurm.section import Slurm

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.jobfile.spec import JobSpec

_START_S = 600.0  # of a job besides its training: to start, and to record


def limit_s(spec: JobSpec) -> float | None:
    """Return the time limit that a job asks for, in seconds; ``None``: that of the partition."""
    slurm = Slurm.of(spec.run_on)
    if slurm.time is not None:
        return duration_s(slurm.time)
    if spec.timeout_s is None:
        return None
    return spec.timeout_s + lead_s(spec.launch.grace_period_s) + EARLY_S + _START_S


def _quote(word: str) -> str:
    """Quote a word for sbatch: it knows no quote within single quotes, and ``#`` cuts a line."""
    if re.fullmatch(r"[\w%+,./:=@\[\]-]*", word):
        return word
    return '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'


def build_script(spec: JobSpec, folder: Path, home: Path) -> str:
    """Return the batch script of a job: options of sbatch, the user's lines, and zeusrun.

    ``folder`` is that of the queued submit.

    zeusrun takes the place of the shell, so that it gets the signals of the batch step.
    """
    slurm, seconds = Slurm.of(spec.run_on), limit_s(spec)
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
        "output": str(folder / "output.log").replace("%", "%%"),  # "%" begins a pattern of Slurm
    }
    given = [(name, value) for name, value in options.items() if value is not None]
    lines = ["#!/bin/bash"]
    lines += [f"#SBATCH --{name}={_quote(str(value))}" for name, value in given]
    if spec.most_ranks is not None:  # a node that dies costs its ranks alone
        lines.append("#SBATCH --no-kill")
    lines.append("#SBATCH --requeue" if slurm.requeue else "#SBATCH --no-requeue")
    for name, equals, value in (option.partition("=") for option in slurm.extra):
        lines.append(f"#SBATCH {name}{equals}{_quote(value)}")
    lines.append(f"export ZEUSRUN_HOME={shlex.quote(str(home))}")
    lines += ["set -e", slurm.setup.rstrip()] if slurm.setup.strip() else []
    # Without -P, a random.py in the working directory would replace Python's.
    safe = "-P " if sys.version_info >= (3, 11) else ""
    python = slurm.python or shlex.quote(sys.executable)
    lines.append(f"cd / && exec {python} {safe}-m zeusrun inside slurm {folder.name}")
    return "\n".join(lines) + "\n"
