"""The section ``run_on.slurm`` of a job file: what zeusrun asks Slurm for."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping  # noqa: TC003 - pydantic needs it
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from zeusrun.jobfile.run_on_section import SchedulerSection
from zeusrun.jobfile.validators import duration_s
from zeusrun.jobfile.values import read_by
from zeusrun.run_on.slurm.client import read_address

_DECIDED = (  # the options of sbatch that ``extra`` cannot set
    *("nodes", "ntasks", "ntasks-per-node", "time", "requeue", "no-requeue", "signal", "output"),
    *("error", "open-mode", "array", "wait", "parsable", "wrap", "test-only", "clusters"),
)


def _limit_s(text: str) -> float:
    if not (seconds := duration_s(text)):
        raise ValueError("must be more than 0, which is no limit to Slurm; leave it out instead")
    return seconds


def _check_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"must be one line without control characters, not {text!r}")
    return text


def _check_option(text: str) -> str:
    match = re.fullmatch(r"--([a-z][\w-]*)(=.*)?", text, re.ASCII)
    if match is None:
        raise ValueError(f"must be one option of sbatch, such as --exclude=n7, not {text!r}")
    if any(name.startswith(match[1]) for name in _DECIDED):  # sbatch takes --nod for --nodes
        raise ValueError(
            f"cannot contain --{match[1]}: zeusrun decides it; launch and run_on.slurm have keys "
            "for nodes, ranks, time and requeue"
        )
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
    time: Annotated[str, read_by(_limit_s)] | None = Field(
        None, description="Time limit, such as 8h; null: from timeout_s."
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

    def find_address(self, host: str) -> str:
        """Return the address by which Slurm reaches a node."""
        return read_address(host) or host


SECTION = Slurm
