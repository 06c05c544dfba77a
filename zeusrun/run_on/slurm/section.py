"""The section ``run_on.slurm`` of a job file: what zeusrun asks Slurm for."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from collections.abc import Mapping  # noqa: TC003 - pydantic needs it
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from zeusrun.jobfile.run_on_section import SchedulerSection
from zeusrun.jobfile.validators import duration_s
from zeusrun.jobfile.values import read_by

_KEYS = {  # the options of sbatch that ``extra`` cannot set, by the key that sets them
    "launch.nnodes": ("--nodes", "-N"),
    "launch.nproc_per_node": ("--ntasks", "--ntasks-per-node", "-n"),
    "run_on.slurm.time": ("--time", "-t"),
    "run_on.slurm.requeue": ("--requeue", "--no-requeue"),
    "": (
        *("--signal", "--output", "-o", "--error", "-e", "--open-mode", "--array", "-a"),
        *("--wait", "-W", "--parsable", "--wrap", "--test-only", "--clusters", "-M"),
    ),
}
# A long option, or a short one after flags: -Q -N2 may be written as -QN2.
_OPTION = re.compile(r"(--[a-z][^=]*)|-[HOQksv]*([A-Za-z])")
_TIME = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,6}(?::[0-9]{1,6}){0,2})")


def time_s(text: str) -> float:
    """Return the seconds of a time limit: ``8h``, or as Slurm writes it.

    Slurm's forms are ``M``, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M`` and ``D-H:M:S``.

    Raises:
        ValueError: If it is none of these, or 0, which means no limit to Slurm.
    """
    if match := _TIME.fullmatch(text.strip()):
        parts = match[2].split(":")
        units = (3600, 60, 1) if match[1] or len(parts) == 3 else (60, 1)
        seconds = 86400.0 * int(match[1] or 0)
        seconds += sum(int(part) * unit for part, unit in zip(parts, units, strict=False))
    else:
        seconds = duration_s(text)
    if seconds == 0:
        raise ValueError("must be more than 0, which is no limit to Slurm; leave it out instead")
    return seconds


def _check_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"must be one line without control characters, not {text!r}")
    return text


def _check_option(text: str) -> str:
    first, rest = "", list[str]()
    with contextlib.suppress(ValueError):  # no word, or a quote that does not end
        first, *rest = shlex.split(text)
    match = _OPTION.match(first)
    if match is None or len(rest) > 1 or any(word.startswith("-") for word in rest):
        raise ValueError(f"must be one option of sbatch, such as --exclude=n7, not {text!r}")
    name = match[1] or f"-{match[2]}"
    for key, options in _KEYS.items():
        if any(option.startswith(name) for option in options):  # sbatch takes --nod for --nodes
            advice = f"set {key}" if key else "remove it: zeusrun decides on it"
            raise ValueError(f"cannot contain {name}; {advice}")
    return text


_Line = Annotated[str, Field(min_length=1), AfterValidator(_check_line)]


class Slurm(SchedulerSection):
    """What Slurm allocates, in sbatch's own words; launch says how many nodes and processes."""

    summary: ClassVar[str] = (
        "Instead of hosts: Slurm allocates launch.nnodes machines. run_on: slurm is short for "
        "slurm: {}."
    )
    fan_out: ClassVar[str] = (
        "srun --overlap --nodes=1 --ntasks=1 --nodelist={host} --cpu-bind=none --mem=0 "
        "--kill-on-bad-exit=1"
    )
    other_names: ClassVar[Mapping[str, str]] = {"run_on.slurm.nodes": "launch.nnodes"}

    partition: _Line | None = Field(None, description="Partition; null: the default one.")
    account: _Line | None = Field(None, description="Account that pays; null: the default one.")
    qos: _Line | None = Field(None, description="Quality of service, such as high.")
    constraint: _Line | None = Field(None, description="Features of the nodes, such as a100.")
    gres: _Line | None = Field(None, description="Generic resources of each node, such as gpu:4.")
    cpus_per_task: int | None = Field(
        None, ge=1, description="CPUs of each node, where zeusrun is one task."
    )
    time: Annotated[str | int, read_by(time_s)] | None = Field(
        None, description="Time limit: 8h, 90 (minutes), 8:00:00, 1-12:00. null: from timeout_s."
    )
    requeue: bool = Field(
        True, description="After the time limit or a preemption, queue again and continue the run."
    )
    extra: tuple[Annotated[_Line, AfterValidator(_check_option)], ...] = Field(
        (), strict=False, description="More options of sbatch: [--exclude=n7, --mem=0]."
    )
    setup: str = Field(
        "", description="Shell lines that run before zeusrun, such as module load cuda."
    )
    python: _Line | None = Field(
        None, description="Command that starts Python on the nodes; null: the Python of zeusrun."
    )

    @property
    def python_words(self) -> list[str]:
        """The words that start Python on a node: srun passes them on as they are."""
        return shlex.split(self.python or shlex.quote(sys.executable))


SECTION = Slurm
