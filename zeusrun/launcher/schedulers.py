"""The schedulers that run jobs elsewhere, each by the prefix of its jobs: ``slurm:1234``.

Whoever has the name of a job need not know which scheduler runs it.
"""

from __future__ import annotations

import importlib
import re
import time
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, cast

from zeusrun.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from zeusrun.reasons import ReasonCode
    from zeusrun.trial import Outcome, Trial

State: TypeAlias = Literal["queued", "running", "ended"]

KUBERNETES = "kubernetes:"
"""How the name of a job in Kubernetes begins; its namespace and its name follow."""

# By prefix: the module with the functions of ``Scheduler``, and the form of what follows.
_SCHEDULERS = {
    "slurm": ("zeusrun.launcher.slurm.client", re.compile(r"\d{1,12}", re.ASCII)),
    "kubernetes": (
        "zeusrun.launcher.kubernetes.client",
        re.compile(r"[a-z0-9-]{1,63}/[a-z0-9.-]{1,63}"),
    ),
}
_AGAIN_S = 0.5
_KEPT_S = 5.0  # a state that was read; waiting submits ask twice a second


class SchedulerJob(Protocol):
    """A job as its scheduler describes it now."""

    @property
    def has_ended(self) -> bool:
        """Whether it does not run any more, and will not run again."""

    @property
    def state_of_ticket(self) -> State:
        """What this says of the ticket of a submit whose launcher does not hold it."""


class Scheduler(Protocol):
    """What the module of a scheduler does with names of its jobs."""

    def read_jobs(self, names: Iterable[str]) -> Mapping[str, SchedulerJob]:
        """Return the state of each job; one that is missing is unknown: no response."""

    def describe_job(self, name: str, job: SchedulerJob | None) -> str:
        """Return where a job is, in a sentence without its end."""

    def cancel_job(self, name: str) -> None:
        """Cancel a job, unless it has ended already; raises ``LaunchError``."""

    def interrupt_job(self, name: str) -> None:
        """Ask the launcher of a running job to stop; raises ``LaunchError``."""

    def how_to_see(self, name: str) -> str:
        """Return the command that says why a job does not end."""


class Allocation(Protocol):
    """A job of a scheduler, seen by the launcher inside."""

    @property
    def name(self) -> str:
        """Its name in records, such as ``slurm:1234``."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Its hosts, this one first."""

    def time_left_s(self) -> float | None:
        """Return the seconds that a training may take from now on; ``None``: any."""

    def find_cause(self) -> tuple[ReasonCode, str] | None:
        """Return why the scheduler has signalled this job; ``None``: it is unknown."""

    def check_sentinel(self) -> str | None:
        """Return, once, what ends the job, if no signal says it."""

    def judge(self, trial: Trial, outcome: Outcome, *, saved: bool) -> Outcome:
        """Return the outcome of a trial, which was ``trial`` before; ``saved``: a checkpoint."""


def is_job(name: str) -> bool:
    """Whether a name is that of a job of a scheduler."""
    prefix, _, rest = name.partition(":")
    return prefix in _SCHEDULERS and _SCHEDULERS[prefix][1].fullmatch(rest) is not None


def is_remote(allocation: str | None) -> bool:
    """Whether a run in an allocation has its files elsewhere: a pod shares no home with users."""
    return allocation is not None and allocation.startswith(KUBERNETES)


def scheduler_of(name: str) -> Scheduler:
    """Return the scheduler that has a job."""
    return cast("Scheduler", importlib.import_module(_SCHEDULERS[name.partition(":")[0]][0]))


def read_jobs(names: Iterable[str]) -> dict[str, SchedulerJob]:
    """Return the state of each job; one that is missing is unknown: no response."""
    asked = set(filter(is_job, names))
    found: dict[str, SchedulerJob] = {}
    for prefix in {name.partition(":")[0] for name in asked}:
        own = [name for name in asked if name.startswith(f"{prefix}:")]
        found |= scheduler_of(own[0]).read_jobs(own)
    return found


def describe_job(name: str, job: SchedulerJob | None) -> str:
    """Return where a job is, in a sentence without its end."""
    return scheduler_of(name).describe_job(name, job)


_states: dict[str, tuple[float, State]] = {}  # by name: when it was read, and what it was


def read_states(names: Iterable[str]) -> dict[str, State]:
    """Return the state of some jobs, as it was a moment ago; an unknown one is queued."""
    since_t = time.monotonic() - _KEPT_S
    asked = set(names)
    stale = [name for name in asked if name not in _states or _states[name][0] < since_t]
    jobs = read_jobs(stale)
    for name in stale:
        job = jobs.get(name)
        _states[name] = (time.monotonic(), "queued" if job is None else job.state_of_ticket)
    return {name: _states[name][1] for name in asked}


def find_ended(names: Iterable[str]) -> set[str]:
    """Return those of some allocations that have ended; an unknown one has not."""
    return {name for name, state in read_states(names).items() if state == "ended"}


def cancel_job(name: str) -> None:
    """Cancel a job, unless it has ended already; raises ``LaunchError``."""
    scheduler_of(name).cancel_job(name)
    _states.pop(name, None)


def interrupt_job(name: str) -> None:
    """Ask the launcher of a running job to stop; raises ``LaunchError``."""
    scheduler_of(name).interrupt_job(name)


def end_job(name: str, timeout_s: float) -> None:
    """Cancel a job, and wait until it has ended; raises ``LaunchError``."""
    cancel_job(name)
    until_t = time.monotonic() + timeout_s
    while (job := read_jobs([name]).get(name)) is None or not job.has_ended:
        if time.monotonic() > until_t:
            how = scheduler_of(name).how_to_see(name)
            raise LaunchError(f"{name} does not end; `{how}` says why")
        time.sleep(_AGAIN_S)
