"""Submits that Slurm starts: see ``run_on/batch``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.commands import options
from zeusrun.errors import LaunchError
from zeusrun.reasons import ReasonCode
from zeusrun.run_on.batch.submit import BatchSubmitter
from zeusrun.run_on.slurm.allocation import open_allocation
from zeusrun.run_on.slurm.client import name_of, read_jobs, requeue_job, stop_job, submit_script
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

    backend, lister = "slurm", "squeue"

    def build_script(self, spec: JobSpec, files: QueuedFiles, home: Path) -> str:
        """Return the batch script of a submit."""
        return build_script(spec, files, home)

    def submit_script(self, script: Path, spec: JobSpec, earlier: Sequence[str]) -> str:
        """Queue a script by ``sbatch``."""
        section = Slurm.of(spec.run_on)
        given = () if section is None else section.model_dump(exclude_none=True)
        return submit_script(script, earlier, spec.source.parent, given)

    def read_job(self, name: str) -> SlurmJob | None:
        """Return a job as ``squeue`` shows it."""
        return read_jobs([name]).get(name)

    def stop_job(self, name: str, *, at_once: bool) -> None:
        """Send SIGINT to the batch step, or cancel the job."""
        stop_job(name, at_once=at_once)

    def requeues(self, spec: JobSpec) -> bool:
        """Whether the job file lets Slurm start a job again."""
        section = Slurm.of(spec.run_on)
        return section is not None and section.requeue

    def name_own(self, environment: Mapping[str, str]) -> str:
        """Return the name of the job of this process."""
        return name_of(environment.get("SLURM_JOB_ID", ""))

    def open_allocation(self, environment: Mapping[str, str], grace_s: float) -> SlurmAllocation:
        """Return the job of this process, whose end Slurm signals early enough."""
        return open_allocation(environment, grace_s)

    def requeue(self, allocation: SlurmAllocation) -> bool:  # type: ignore[override]
        """Queue this job again, unless it was cancelled; return whether it will run again."""
        cause = allocation.ask()
        if cause is not None and cause[0] is ReasonCode.CANCELLED:
            return False
        try:
            requeue_job(allocation.name)
        except LaunchError as error:
            job = self.read_job(allocation.name)
            # Somebody else has done so; until its processes end, the job is COMPLETING.
            if job is None or (job.restarts <= allocation.restarts and job.state != "PENDING"):
                options.tell(f"{error}; the next submit continues the run")
                return False
        return True


_SUBMITTER = SlurmSubmitter()
show, submit, run_inside = _SUBMITTER.show, _SUBMITTER.submit, _SUBMITTER.run_inside
open_output, add_schedule = _SUBMITTER.open_output, _SUBMITTER.add_schedule
