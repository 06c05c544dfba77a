"""The schedulers that run jobs elsewhere, each by the prefix of its jobs: ``slurm:1234``.

Whoever has the name of a job need not know which scheduler runs it.
"""

from __future__ import annotations

import importlib
import re
import time
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from zeusrun.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from zeusrun.reasons import ReasonCode
    from zeusrun.trial import Outcome, Trial

State: TypeAlias = Literal["queued", "running", "ended"]

KUBERNETES = "kubernetes:"
"""How the name of a job in Kubernetes begins; its namespace and its name follow."""

GONE, COMPLETE = "GONE", "Complete"
"""States of a job that does not exist any more, and of one that Kubernetes has completed."""

# By prefix: the module that asks the scheduler, the form of what follows, and what shows a job.
_SCHEDULERS = {
    "slurm": ("zeusrun.launcher.slurm.client", r"\d{1,12}", "scontrol show job {}"),
    "kubernetes": (
        "zeusrun.launcher.kubernetes.client",
        r"[a-z0-9][a-z0-9-]{0,62}/[a-z0-9][a-z0-9.-]{0,62}",
        "kubectl -n {} get jobs,trainjobs,pods",
    ),
}
_AGAIN_S = 0.5
_KEPT_S = 5.0  # a state that was read; waiting submits ask twice a second


class SchedulerJob(Protocol):
    """A job as its scheduler describes it now."""

    @property
    def state(self) -> str:
        """The scheduler's own word, or ``GONE``."""

    @property
    def has_ended(self) -> bool:
        """Whether it does not run any more, and will not run again."""

    @property
    def grace_s(self) -> float:
        """Seconds within which its processes end after it is cancelled."""

    @property
    def state_of_ticket(self) -> State:
        """What this says of the ticket of a submit whose launcher does not hold it."""


class Allocation(Protocol):
    """A job of a scheduler, seen from inside: by the launcher that runs in it."""

    @property
    def name(self) -> str:
        """Its name in records: ``slurm:1234``."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Its machines, that of the launcher first."""

    def time_left_s(self) -> float | None:
        """Return the seconds that a training may take from now on; ``None``: any."""

    def find_cause(self) -> tuple[ReasonCode, str] | None:
        """Return why the scheduler has signalled the job; ``None``: it did not, or unknown."""

    def check_sentinel(self) -> str | None:
        """Return, once, what ends the job, if the launcher got no signal."""

    def judge(self, trial: Trial, outcome: Outcome, *, saved: bool) -> Outcome:
        """Return the outcome of a trial, by what the job allows.

        ``trial`` is as it was before this part; ``saved``: it has a checkpoint.
        """


def is_job(name: str) -> bool:
    """Whether a name is that of a job of a scheduler."""
    prefix, _, rest = name.partition(":")
    form = prefix in _SCHEDULERS and _SCHEDULERS[prefix][1]
    return bool(form and re.fullmatch(form, rest, re.ASCII))


def is_remote(allocation: str | None) -> bool:
    """Whether a run in an allocation has its files elsewhere: a pod shares no home with users."""
    return allocation is not None and allocation.startswith(KUBERNETES)


def _module(name: str) -> ModuleType:
    """Return the client of the scheduler that has a job; raises ``LaunchError``."""
    if not is_job(name):  # of a newer version; nor may it be an option of a command
        raise LaunchError(f"{name} is a job of no scheduler that this version of zeusrun knows")
    return importlib.import_module(_SCHEDULERS[name.partition(":")[0]][0])


def read_jobs(names: Iterable[str]) -> dict[str, SchedulerJob]:
    """Return the state of each job; one that is missing is unknown: no response."""
    asked = set(filter(is_job, names))
    found: dict[str, SchedulerJob] = {}
    for prefix in {name.partition(":")[0] for name in asked}:
        own = [name for name in asked if name.startswith(f"{prefix}:")]
        found |= _module(own[0]).read_jobs(own)
    return found


def check_exists(name: str, job: SchedulerJob | None) -> None:
    """Raise ``UsageError`` if Kubernetes has no such job; Slurm may leave files of one here."""
    if is_remote(name) and job is not None and job.state == GONE:
        raise UsageError(f"{name} does not exist in this cluster; `zeusrun history` lists runs")


def describe_job(name: str, job: SchedulerJob | None) -> str:
    """Return where a job is, in a sentence without its end."""
    if not is_job(name):
        return f"{name}: this version of zeusrun does not know its scheduler"
    return str(_module(name).describe_job(name, job))


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
    _module(name).cancel_job(name)
    _states.pop(name, None)


def interrupt_job(name: str) -> None:
    """Ask the launcher of a running job to stop; raises ``LaunchError``."""
    _module(name).interrupt_job(name)


def end_job(name: str, timeout_s: float) -> None:
    """Cancel a job, and wait until it has ended; raises ``LaunchError``."""
    before = read_jobs([name]).get(name)
    cancel_job(name)
    until_t = time.monotonic() + timeout_s + (0.0 if before is None else before.grace_s)
    while (job := read_jobs([name]).get(name)) is None or not job.has_ended:
        if time.monotonic() > until_t:
            prefix, _, rest = name.partition(":")
            how = _SCHEDULERS[prefix][2].format(*rest.split("/"))
            raise LaunchError(f"{name} does not end; `{how}` says why")
        time.sleep(_AGAIN_S)
