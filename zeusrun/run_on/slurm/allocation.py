"""The Slurm job that this process is the batch step of: its nodes, its time, why it ends."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from zeusrun.clock import read_clock
from zeusrun.commands.options import tell
from zeusrun.errors import LaunchError, UsageError
from zeusrun.launcher.processes.fan_out import Sentinel
from zeusrun.reasons import ReasonCode
from zeusrun.run_on.slurm.client import (
    SlurmJob,
    list_hosts,
    name_of,
    read_jobs,
    requeue_job,
)
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from zeusrun.trial import Outcome, Trial

EARLY_S = 60.0
"""Slurm may send the signal of ``--signal`` so much earlier than it was asked."""

_ANSWER_S = 3.0  # of Slurm, while the ranks are to be stopped
_RECORD_S = 30.0
_SENTINEL = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0")


@dataclass
class SlurmAllocation:
    """A job of Slurm, seen from inside. A context manager, which watches for its end.

    At a preemption Slurm signals only what ``srun`` started, and not the batch step. So a process
    that does nothing is started by ``srun`` on this node.
    """

    name: str  # in records: slurm:1234
    hosts: tuple[str, ...]  # this one first
    restarts: int  # how often Slurm has started the job again
    end_at: float | None  # Unix seconds; ``None``: no time limit
    lead_s: float  # the signal that its time ends comes so much before
    is_known: bool = True  # whether Slurm responds here
    out_of_time: bool = False  # its time limit ends the run
    _asked: bool = False
    _cause: tuple[ReasonCode, str] | None = None
    _sentinel: Sentinel | None = field(default=None, repr=False)

    @property
    def keeps_files(self) -> None:
        """They are in the home of the submit."""

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):  # then no preemption is noticed
            self._sentinel = Sentinel([*_SENTINEL, f"--nodelist={self.hosts[0]}"])
        return self

    def __exit__(self, *_: object) -> None:
        if self._sentinel is not None:
            self._sentinel.end()

    def time_left_s(self) -> float | None:
        """Return the seconds that a training may take from now on; ``None``: any."""
        if self.end_at is None:
            return None
        return max(0.0, self.end_at - read_clock() - self.lead_s - EARLY_S)

    def check_sentinel(self) -> str | None:
        """Return, once, what ends the job, if the signal came to the sentinel alone."""
        if self._sentinel is None or not self._sentinel.was_signalled:
            return None
        self._sentinel = None
        self._cause = self._cause or self.ask()
        if self._cause is None and not self.is_known:  # it is busy with what it ends
            return f"{self.name} was signalled"
        return None if self._cause is None else self._cause[1]

    def find_cause(self) -> tuple[ReasonCode, str] | None:
        """Return why Slurm has signalled this job; ``None``: somebody else did, or it is unknown.

        Slurm is asked once. It has changed its record of the job before it sends a signal.
        """
        if self._cause is None and not self._asked:
            self._asked = True  # a supervisor calls this several times a second
            self._cause = self.ask()
        return self._cause

    def ask(self) -> tuple[ReasonCode, str] | None:
        """Return why the job ends, as Slurm says now; ``None``: it runs."""
        # If Slurm does not respond, the time limit is as it was at the start.
        answer = read_jobs([self.name], _ANSWER_S)
        self.is_known = self.name in answer
        job = answer.get(self.name, SlurmJob("RUNNING", end_at=self.end_at))
        if job.restarts > self.restarts:
            return ReasonCode.PREEMPTED, f"{self.name} is queued again"
        if job.preempted:
            return ReasonCode.PREEMPTED, f"{self.name} is preempted by another job"
        runs = job.state in {"RUNNING", "CONFIGURING", "SUSPENDED"}
        if runs:  # the limit may have been changed
            self.end_at = job.end_at
        within_s = self.lead_s + 2 * EARLY_S if runs else 0.0
        is_late = self.end_at is not None and read_clock() >= self.end_at - within_s
        if is_late or job.cause == "TimeLimit":
            self.out_of_time = True
            return ReasonCode.PREEMPTED, f"the time limit of {self.name} is near"
        if job.cause == "NodeDown":
            return ReasonCode.PREEMPTED, f"a node of {self.name} is down"
        return None if runs else (ReasonCode.CANCELLED, f"{self.name} was cancelled")

    def requeue(self) -> bool:
        """Queue this job again, unless it was cancelled; return whether it will run again."""
        cause = self.ask()
        if cause is not None and cause[0] is ReasonCode.CANCELLED:
            return False
        try:
            requeue_job(self.name)
        except LaunchError as error:
            job = read_jobs([self.name]).get(self.name)
            # Another process may have requeued the job; it is COMPLETING until its processes end.
            if job is None or (job.restarts <= self.restarts and job.state != "PENDING"):
                tell(f"{error}; the next submit continues the run")
                return False
        return True

    def judge(self, trial: Trial, outcome: Outcome, *, saved: bool) -> Outcome:
        """Return the outcome of a trial; if time ran out and it cannot resume, it timed out.

        ``trial`` is as it was before this part; ``saved``: it has a checkpoint.
        """
        progressed = saved and outcome.time_s != trial.time_s
        if outcome.status is not TrialStatus.PREEMPTED or not self.out_of_time or progressed:
            return outcome
        why = "saved no checkpoint" if not saved else "had no time to train"
        reason = f"timed out: the time limit of {self.name} ended it, and it {why}"
        return replace(
            outcome, status=TrialStatus.STOPPED, reason_code=ReasonCode.TIMEOUT, reason=reason
        )


def open_allocation(environment: Mapping[str, str], grace_period_s: float) -> SlurmAllocation:
    """Return the job of Slurm that this process runs in.

    Raises:
        LaunchError: If Slurm does not name its nodes.
        UsageError: If this is not the batch step of a job.
    """
    job_id, nodes = environment.get("SLURM_JOB_ID"), environment.get("SLURM_JOB_NODELIST")
    if not job_id or not nodes:
        raise UsageError("this command is for the batch step of a Slurm job: `zeusrun submit`")
    name, here = name_of(job_id), environment.get("SLURMD_NODENAME", "")
    job = read_jobs([name]).get(name)
    start_at, end_at = (None, None) if job is None else (job.start_at, job.end_at)
    limit_s = None if start_at is None or end_at is None else end_at - start_at
    return SlurmAllocation(
        name,
        tuple(sorted(list_hosts(nodes), key=lambda host: host != here)),
        int(environment.get("SLURM_RESTART_COUNT") or 0),
        end_at,
        lead_s(grace_period_s, limit_s),
        is_known=job is not None,
    )


def lead_s(grace_period_s: float, limit_s: float | None = None) -> float:
    """Return how long before the end of its time a job is signalled, in seconds.

    Enough to save, to end, and to record; of a short job, half of its time at most.
    """
    wanted_s = grace_period_s + _RECORD_S
    return wanted_s if limit_s is None else min(wanted_s, limit_s / 2)
