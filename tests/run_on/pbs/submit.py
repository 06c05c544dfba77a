"""Submits that PBS starts."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from tests.run_on.pbs.allocation import open_allocation
from tests.run_on.pbs.client import read_jobs, submit_script
from tests.run_on.pbs.section import PBS
from zeusrun.run_on.slurm.submit import SlurmSubmitter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.run_on.pbs.allocation import PBSAllocation
    from tests.run_on.pbs.client import Job
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.run_on.slurm.submit import QueuedFiles


class PBSSubmitter(SlurmSubmitter):
    """Submits to PBS."""

    backend, lister, id_variable = "pbs", "qstat", "PBS_JOBID"

    def build_script(self, spec: JobSpec, files: QueuedFiles, home: Path) -> str:
        section = PBS.of(spec.run_on)
        wanted = {"-q": section.queue, "-l": section.walltime and f"walltime={section.walltime}"}
        lines = ["#!/bin/bash", f"#PBS -N {spec.name}", f"#PBS -o {files.output}", "#PBS -j oe"]
        lines += [f"#PBS {option} {value}" for option, value in wanted.items() if value]
        lines.append(f"#PBS -l select={spec.launch.nnodes or 1}")
        lines.append(f"export ZEUSRUN_HOME={shlex.quote(str(home))}")
        python = shlex.quote(sys.executable)
        lines.append(f"cd / && exec {python} -m zeusrun inside pbs {files.folder.name}")
        return "\n".join(lines) + "\n"

    def submit_script(self, script: Path, spec: JobSpec, earlier: Sequence[str]) -> str:
        return submit_script(script, spec.source.parent, earlier)

    def read_job(self, name: str) -> Job | None:
        return read_jobs([name]).get(name)

    def requeues(self, spec: JobSpec) -> bool:
        return False

    def open_allocation(self, environment: Mapping[str, str], grace_s: float) -> PBSAllocation:
        del grace_s
        return open_allocation(environment)


SUBMITTER = PBSSubmitter()
