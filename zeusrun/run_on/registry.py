"""The schedulers that run jobs elsewhere: the one table of their names, and what each can do.

A backend is a package with the modules ``section`` (its keys under ``run_on``), ``client`` (see
``Client``) and ``submit`` (its ``SUBMITTER``: see ``commands/follow.py``). They are imported when a
job names the backend: by its section, or by its prefix in the name of a job, ``slurm:1234``.
"""

from __future__ import annotations

import importlib
import re
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from zeusrun.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from zeusrun.reasons import ReasonCode
    from zeusrun.trial import Outcome, Trial, TrialStatus

State: TypeAlias = Literal["queued", "running", "ended"]

GONE, COMPLETE = "GONE", "Complete"
"""States of a job that does not exist any more, and of one that its scheduler has completed."""


class Backend(NamedTuple):
    """Where the code of a scheduler is, and what its name alone must tell."""

    package: str
    form: str  # of what follows the prefix in the name of a job
    shares_home: bool  # whether its jobs write into the home of the machine that submits


BACKENDS: dict[str, Backend] = {
    "slurm": Backend("zeusrun.run_on.slurm", r"\d{1,12}", shares_home=True),
    "kubernetes": Backend(
        "zeusrun.run_on.kubernetes",
        r"[a-z0-9][a-z0-9-]{0,62}/[a-z0-9][a-z0-9.-]{0,62}",
        shares_home=False,
    ),
}
"""By the name of their sections under ``run_on``, which is the prefix of their jobs, too."""

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

    @property
    def keeps_files(self) -> bool | None:
        """Whether the files of a run outlive it; ``None``: they are where the submit is."""

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


class Client(Protocol):
    """The module that asks a scheduler, and changes its jobs."""

    LOOK: str
    """The command that shows a job, with ``{}`` for each part of its name between slashes."""

    def read_jobs(self, names: Iterable[str]) -> Mapping[str, SchedulerJob]:
        """Return the state of each job; one that is missing is unknown: no response."""

    def describe_job(self, name: str, job: SchedulerJob | None) -> str:
        """Return where a job is, in a sentence without its end."""

    def cancel_job(self, name: str) -> None:
        """Cancel a job, unless it has ended already; raises ``LaunchError``."""

    def interrupt_job(self, name: str) -> None:
        """Ask the launcher of a running job to stop; raises ``LaunchError``."""

    def explain_end(self, name: str, *, saved: bool) -> tuple[TrialStatus | None, str] | None:
        """Return the status of a trial without an outcome, and a reason; ``None`` if unknown.

        The status is ``None`` if the scheduler knows only the reason. ``saved``: whether there is
        a checkpoint.
        """


def load(backend: str, part: str) -> Any:  # noqa: ANN401 - a module, see above
    """Import a module of a backend: its section, its client, or what submits."""
    return importlib.import_module(f"{BACKENDS[backend].package}.{part}")


def backend_of(name: str) -> str | None:
    """Return the backend that has a job; ``None`` if that is no name of a job."""
    backend, _, rest = name.partition(":")
    known = BACKENDS.get(backend)
    return backend if known is not None and re.fullmatch(known.form, rest, re.ASCII) else None


def is_job(name: str) -> bool:
    """Whether a name is that of a job of a scheduler."""
    return backend_of(name) is not None


def is_remote(allocation: str | None) -> bool:
    """Whether a run in an allocation has its files elsewhere: a pod shares no home with users."""
    known = BACKENDS.get((allocation or "").partition(":")[0])
    return known is not None and not known.shares_home


def _client(name: str) -> Client:
    """Return the client of the scheduler that has a job; raises ``LaunchError``."""
    if (backend := backend_of(name)) is None:  # of a newer version; nor may it be an option
        raise LaunchError(f"{name} names no job of a scheduler that this version supports")
    client: Client = load(backend, "client")
    return client


def read_jobs(names: Iterable[str]) -> dict[str, SchedulerJob]:
    """Return the state of each job; one that is missing is unknown: no response."""
    asked = set(filter(is_job, names))
    found: dict[str, SchedulerJob] = {}
    for backend in {backend_of(name) for name in asked}:
        of_backend = [name for name in asked if backend_of(name) == backend]
        found |= _client(of_backend[0]).read_jobs(of_backend)
    return found


def check_exists(name: str, job: SchedulerJob | None) -> None:
    """Raise ``UsageError`` if a job is gone that has left no files here."""
    if is_remote(name) and job is not None and job.state == GONE:
        raise UsageError(f"{name} does not exist in this cluster; `zeusrun history` lists runs")


def describe_job(name: str, job: SchedulerJob | None) -> str:
    """Return where a job is, in a sentence without its end."""
    if not is_job(name):
        return f"{name}: this version of zeusrun does not know its scheduler"
    return _client(name).describe_job(name, job)


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


def explain_end(name: str, *, saved: bool) -> tuple[TrialStatus | None, str] | None:
    """Return what the end of a job says of a trial without an outcome: see ``Client``."""
    return _client(name).explain_end(name, saved=saved) if is_job(name) else None


def cancel_job(name: str) -> None:
    """Cancel a job, unless it has ended already; raises ``LaunchError``."""
    _client(name).cancel_job(name)
    _states.pop(name, None)


def interrupt_job(name: str) -> None:
    """Ask the launcher of a running job to stop; raises ``LaunchError``."""
    _client(name).interrupt_job(name)


def end_job(name: str, timeout_s: float) -> None:
    """Cancel a job, and wait until it has ended; raises ``LaunchError``."""
    before = read_jobs([name]).get(name)
    cancel_job(name)
    until_t = time.monotonic() + timeout_s + (0.0 if before is None else before.grace_s)
    while (job := read_jobs([name]).get(name)) is None or not job.has_ended:
        if time.monotonic() > until_t:
            how = _client(name).LOOK.format(*name.partition(":")[2].split("/"))
            raise LaunchError(f"{name} does not end; `{how}` says why")
        time.sleep(_AGAIN_S)
