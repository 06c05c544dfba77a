"""Slurm by its own commands: sbatch, squeue, sacct, scontrol and scancel."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from zeusrun.errors import LaunchError
from zeusrun.launcher.processes.programs import run_briefly
from zeusrun.run_on.registry import GONE, is_job
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from zeusrun.run_on.registry import SchedulerJob, State

LOOK = "scontrol show job {}"

_PREFIX = "slurm:"
_READ_S = 10.0  # more than that, and its state counts as unknown
_CHANGE_S = 60.0  # slurmctld may be busy

# https://slurm.schedmd.com/squeue.html#SECTION_JOB-STATE-CODES
ENDED = frozenset(
    {
        *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"),
        *("DEADLINE", "OUT_OF_MEMORY"),
    }
)
"""States in which a job has ended and does not run again."""

_COLUMNS = (
    *("JobID", "State", "Reason", "RestartCnt", "PreemptTime", "StartTime", "EndTime"),
    *("TimeLimit", "NodeList"),
)
# Variables of the batch step of another job, and those that change how the commands print.
_FOREIGN = re.compile(r"(SLURM_(?!CONF$|JWT$|CLUSTERS$)|SLURMD_|SQUEUE_|SACCT_|SCANCEL_)")
# For sbatch, a variable such as SBATCH_SIGNAL wins over the script, which decides on these.
_DECIDED = (
    *("array_inx", "clusters", "error", "export", "job_name", "no_requeue", "open_mode", "output"),
    *("requeue", "signal", "timelimit", "wait"),
)


@dataclass(frozen=True)
class SlurmJob:
    """A job as Slurm describes it now; ``None`` is unknown."""

    state: str  # such as PENDING
    cause: str | None = None  # Slurm's word for why it waits or ends
    restarts: int = 0
    preempted: bool = False  # its nodes are being taken back
    start_at: float | None = None  # Unix seconds; of a pending job, as Slurm expects it
    end_at: float | None = None  # when its time limit ends it; ``None``: it has none
    nodes: str | None = None  # such as n[1-4]
    grace_s: float = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether it does not run any more, and will not run again."""
        return self.state in ENDED or self.state == GONE

    @property
    def has_begun(self) -> bool:
        """Whether it has had nodes."""
        return self.nodes is not None

    @property
    def state_of_ticket(self) -> State:
        """Whether it has ended: if not, its batch step holds the ticket, or it is queued."""
        return "ended" if self.has_ended else "queued"


def name_of(job_id: str) -> str:
    """Return the name by which people and records name a job: ``slurm:1234``."""
    return _PREFIX + job_id


def _id(name: str) -> str:
    return name.removeprefix(_PREFIX)


def submit_script(
    script: Path, dependencies: Iterable[str], folder: Path, given: Collection[str] = ()
) -> str:
    """Queue a batch script, and return the name of its job. It starts in ``folder``.

    ``dependencies`` are jobs that have to end first; ``given`` are the keys of the job's
    section that are set, in whose place Slurm would take a variable such as SBATCH_ACCOUNT.

    Raises:
        LaunchError: If Slurm refuses it.
    """
    after = ":".join(map(_id, dependencies))
    options = [f"--chdir={folder}", *([f"--dependency=afterany:{after}"] if after else [])]
    decided = {f"SBATCH_{name.upper()}" for name in (*_DECIDED, *given)}
    argv = ("sbatch", "--parsable", "--export=ALL", *options, str(script))
    code, out, errors = _run(*argv, without=decided)
    # Some sites let sbatch print more.
    match = re.search(r"^(\d+)(;\S+)?$", out, re.ASCII | re.MULTILINE)
    if code or match is None:
        why = "; ".join(line.removeprefix("sbatch: error: ") for line in errors.splitlines())
        raise LaunchError(
            f"Slurm did not take the job: {why or f'sbatch exited with code {code}'}. If `sinfo` "
            "works, correct run_on.slurm or launch.nnodes; --dry-run shows the script"
        )
    return name_of(match[1])


def read_jobs(names: Iterable[str], timeout_s: float = _READ_S) -> dict[str, SlurmJob]:
    """Return the state of each job; one that is missing is unknown: Slurm does not respond."""
    asked = sorted(name for name in set(names) if name.startswith(_PREFIX) and is_job(name))
    if not asked:
        return {}
    listed = ",".join(map(_id, asked))
    form = ",".join(f"{name}:|" for name in _COLUMNS)
    argv = ("squeue", "--noheader", "--states=all", f"--jobs={listed}", f"--Format={form}")
    answer = _read(*argv, timeout_s=timeout_s)
    if answer is None:
        return {}
    found: dict[str, SlurmJob] = {}
    for line in answer.splitlines():
        values = [value.strip() for value in line.split("|")]
        if len(values) > len(_COLUMNS):
            known = dict(zip(_COLUMNS, values, strict=False))
            endless = known["TimeLimit"] == "UNLIMITED"
            found[name_of(known["JobID"])] = SlurmJob(
                known["State"].partition(" ")[0],
                known["Reason"] if known["Reason"] not in {"", "None"} else None,
                int(known["RestartCnt"]) if known["RestartCnt"].isdecimal() else 0,
                _parse_time(known["PreemptTime"]) is not None,
                _parse_time(known["StartTime"]),
                None if endless else _parse_time(known["EndTime"]),
                known["NodeList"] or None,
            )
    if missing := [each for each in asked if each not in found]:
        found |= _read_forgotten(missing)
    return found


def describe_job(name: str, job: SchedulerJob | None) -> str:
    """Return where a job is, in a sentence without its end."""
    if not isinstance(job, SlurmJob):
        return f"{name}: Slurm does not respond"
    verb = {"PENDING": "is queued", "RUNNING": "runs", GONE: "is not known to Slurm"}.get(
        job.state, f"is {job.state}"
    )
    where = "" if job.nodes is None else f" on {job.nodes}"
    why = "" if job.cause is None else f" ({job.cause})"
    return f"{name} {verb}{where}{why}"


def list_hosts(nodes: str) -> tuple[str, ...]:
    """Return the names in a list of nodes, such as ``n[1-4]``; raises ``LaunchError``."""
    if not re.search(r"[\[,]", nodes):
        return (nodes,)
    answer = _read("scontrol", "show", "hostnames", nodes)
    if not answer:
        raise LaunchError(f"`scontrol show hostnames {nodes}` does not name the nodes of this job")
    return tuple(answer.split())


def read_address(node: str) -> str | None:
    """Return the address by which Slurm reaches a node; ``None`` if Slurm does not say it."""
    answer = _read("scontrol", "--oneliner", "show", "node", node)
    match = re.search(r"\bNodeAddr=(\S+)", answer or "")
    return None if match is None else match[1]


def cancel_job(name: str) -> None:
    """Cancel a job, unless it has ended already; raises ``LaunchError``."""
    _change("scancel", _id(name))


def interrupt_job(name: str) -> None:
    """Send SIGINT to the batch step of a job, which then stops its training."""
    with contextlib.suppress(LaunchError):  # a file asks it for the same
        # Of a job that is queued again, scancel waits a minute for the batch step.
        _change("scancel", "--signal=INT", "--batch", _id(name), timeout_s=_READ_S)


def explain_end(name: str, *, saved: bool) -> tuple[TrialStatus | None, str] | None:
    """Return what the end of its Slurm job says of a trial without an outcome; ``None``: nothing.

    A status of ``None`` means that it says nothing of that. ``saved``: the trial has a checkpoint,
    so the next submit can continue what a time limit or a dead node has ended.
    """
    job = read_jobs([name]).get(name)
    if job is None or job.state == GONE:
        return None
    status = {
        "CANCELLED": TrialStatus.CANCELLED,
        "PREEMPTED": TrialStatus.PREEMPTED,
        "TIMEOUT": TrialStatus.PREEMPTED if saved else TrialStatus.LOST,
        "NODE_FAIL": TrialStatus.PREEMPTED if saved else None,
    }.get(job.state)
    return status, f"{name} ended as {job.state}"


def requeue_job(name: str) -> None:
    """Queue the job of this process again, which ends it; raises ``LaunchError``."""
    _change("scontrol", "requeue", _id(name))


def _parse_time(text: str) -> float | None:
    """Return Unix seconds of a time in UTC; ``None`` for ``N/A`` and the like."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def _read_forgotten(names: Sequence[str]) -> dict[str, SlurmJob]:
    """Return the jobs that slurmctld has forgotten, from the accounting, if there is one."""
    found = dict.fromkeys(names, SlurmJob(GONE))
    options = ("--noheader", "--parsable2", "--allocations", "--format=JobIDRaw,State")
    answer = _read("sacct", *options, f"--jobs={','.join(map(_id, names))}")
    for line in (answer or "").splitlines():
        job_id, _, state = line.partition("|")
        name, word = name_of(job_id), state.partition(" ")[0]
        # The accounting has jobs as running whose end slurmctld has not recorded before it forgot.
        if name in found and word in ENDED:
            found[name] = SlurmJob(word)
    return found


def _read(*argv: str, timeout_s: float = _READ_S) -> str | None:
    """Return what a command prints; an empty text if it knows no such job, ``None`` if it fails."""
    try:  # in UTC: local times repeat in autumn
        code, out, errors = _run(*argv, timeout_s=timeout_s, TZ="UTC0")
    except LaunchError:
        return None
    if code:
        return "" if "Invalid job id" in errors else None
    return out


def _change(*argv: str, timeout_s: float = _CHANGE_S) -> None:
    code, _, errors = _run(*argv, timeout_s=timeout_s)
    has_ended = "Invalid job id" in errors or "already finished" in errors
    if code and not (has_ended and argv[0] == "scancel"):
        raise LaunchError(f"`{' '.join(argv)}` failed: {errors or f'exit code {code}'}")


def _run(
    *argv: str, timeout_s: float = _CHANGE_S, without: Collection[str] = (), **variables: str
) -> tuple[int, str, str]:
    """Run a command of Slurm; return its exit code, output and error output.

    ``without`` are variables that it does not get. Raises ``LaunchError`` if it cannot be run.
    """
    inherited = {name: text for name, text in os.environ.items() if not _FOREIGN.match(name)}
    environment = {name: text for name, text in inherited.items() if name not in without}
    try:
        code, out, errors = run_briefly(
            argv, environment={**environment, **variables}, timeout_s=timeout_s
        )
    except FileNotFoundError as error:
        raise LaunchError(
            f"Slurm's command {argv[0]} is not on PATH; use a login node of the cluster, or train "
            "on this machine with --set run_on=local"
        ) from error
    except OSError as error:
        raise LaunchError(f"{argv[0]}: {error.strerror or error}") from error
    return code, out.decode(errors="replace"), errors
