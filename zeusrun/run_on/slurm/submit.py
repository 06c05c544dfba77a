"""Submits that Slurm starts: see ``run_on/batch``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.run_on.batch.submit import BatchSubmitter
from zeusrun.run_on.slurm.allocation import open_allocation
from zeusrun.run_on.slurm.client import read_jobs, stop_job, submit_script
from zeusrun.run_on.slurm.script import build_script
from zeusrun.run_on.slurm.section import Slurm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.run_on.batch.files import QueuedFiles
    from zeusrun.run_on.slurm.allocation import SlurmAllocation
    from zeusrun.run_on.slurm.client import SlurmJob


class SlurmSubmitter(BatchSubmitter):
    """Submits to Slurm."""

    backend, lister, id_variable = "slurm", "squeue", "SLURM_JOB_ID"

    def build_script(self, spec: JobSpec, files: QueuedFiles, home: Path) -> str:
        """Return the batch script of a submit."""
        return build_script(spec, files, home)

    def submit_script(self, script: Path, spec: JobSpec, earlier: Sequence[str]) -> str:
        """Queue a script by ``sbatch``."""
        given = Slurm.of(spec.run_on).model_dump(exclude_none=True)
        return submit_script(script, earlier, spec.source.parent, given)

    def read_job(self, name: str) -> SlurmJob | None:
        """Return a job as ``squeue`` shows it."""
        return read_jobs([name]).get(name)

    def stop_job(self, name: str, interrupts: int) -> None:
        """Send SIGINT to the batch step, or cancel the job."""
        stop_job(name, at_once=interrupts > 1)

    def requeues(self, spec: JobSpec) -> bool:
        """Whether the job file lets Slurm start a job again."""
        return Slurm.of(spec.run_on).requeue

    def open_allocation(self, environment: Mapping[str, str], grace_s: float) -> SlurmAllocation:
        """Return the job of this process, whose end Slurm signals early enough."""
        return open_allocation(environment, grace_s)


SUBMITTER = SlurmSubmitter()
