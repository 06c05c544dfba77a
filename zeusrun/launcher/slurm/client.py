"""Slurm by its own commands: sbatch, squeue, sacct, scontrol and scancel."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from zeusrun.errors import LaunchError
from zeusrun.launcher.processes.programs import run_briefly

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

_PREFIX = "slurm:"
_READ_S = 10.0  # more than that, and its state counts as unknown
_CHANGE_S = 60.0  # slurmctld may be busy
_AGAIN_S = 0.5
_KEPT_S = 5.0  # a state that was read; waiting submits ask twice a second

# https://slurm.schedmd.com/squeue.html#SECTION_JOB-STATE-CODES
ENDED = frozenset(
    {
        *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"),
        *("DEADLINE", "OUT_OF_MEMORY"),
    }
)
"""States in which a job has ended and does not run again."""
GONE = "GONE"
"""State of a job that Slurm has forgotten."""

_COLUMNS = (
    *("JobID", "State", "Reason", "RestartCnt", "PreemptTime", "StartTime", "EndTime"),
    *("TimeLimit", "NodeList"),
)
# Variables of the batch step of another job, and those that change how the commands print.
_FOREIGN = re.compile(r"(SLURM_(?!CONF$|JWT$|CLUSTERS$)|SLURMD_|SQUEUE_|SACCT_|SCANCEL_)")
# For sbatch, a variable wins over the script, which says the first ones, and perhaps the others.
_DECIDED = re.compile(
    "SBATCH_(ARRAY_INX|CLUSTERS|EXPORT|JOB_NAME|NO_REQUEUE|OPEN_MODE|OUTPUT|ERROR|REQUEUE|SIGNAL|"
    "TIMELIMIT|WAIT)"
)
_DEFAULT = re.compile("SBATCH_(ACCOUNT|CONSTRAINT|GRES|PARTITION|QOS)")


@dataclass(frozen=True)
class SlurmJob:
    """A job as Slurm describes it now; ``None`` is unknown."""

    state: str  # such as PENDING
    cause: str | None = None  # Slurm's word for why it waits or ends
    restarts: int = 0
    preempted: bool = False  # its nodes are being taken back
    start_at: float | None = None  # Unix seconds; of a pending job, as Slurm expects it
    end_at: float | None = None  # when its time limit ends it, or it has ended
    limit: str | None = None  # its time limit, as Slurm writes it
    nodes: str | None = None  # such as n[1-4]

    @property
    def has_ended(self) -> bool:
        """Whether it does not run any more, and will not run again."""
        return self.state in ENDED or self.state == GONE


def name_of(job_id: str) -> str:
    """Return the name by which people and records name a job: ``slurm:1234``."""
    return _PREFIX + job_id


def id_of(name: str | None) -> str | None:
    """Return the id of a job of Slurm; ``None`` for other names."""
    known = name is not None and re.fullmatch(rf"{_PREFIX}\d{{1,12}}", name, re.ASCII)
    return name.removeprefix(_PREFIX) if known and name is not None else None


def submit_script(
    script: Path, dependencies: Iterable[str], folder: Path, given: Collection[str] = ()
) -> str:
    """Queue a batch script, and return the id of its job. It starts in ``folder``.

    ``dependencies`` are ids of jobs that have to end first; ``given`` are the keys of the job's
    section that are set, in whose place Slurm would take a variable such as SBATCH_ACCOUNT.

    Raises:
        LaunchError: If Slurm refuses it.
    """
    after = ":".join(dependencies)
    options = [f"--chdir={folder}", *([f"--dependency=afterany:{after}"] if after else [])]
    environment = _own_environment()
    for name in list(environment):
        default = _DEFAULT.fullmatch(name)
        if _DECIDED.fullmatch(name) or (default and default[1].lower() in given):
            del environment[name]
    try:
        argv = ["sbatch", "--parsable", "--export=ALL", *options, str(script)]
        code, out, errors = run_briefly(argv, environment=environment, timeout_s=_CHANGE_S)
    except FileNotFoundError as error:
        raise LaunchError(
            "run_on: slurm needs the command sbatch, which is not on PATH; submit on a login node "
            "of the cluster, or train on this machine with --set run_on=local"
        ) from error
    except OSError as error:
        raise LaunchError(f"sbatch: {error.strerror or error}") from error
    # Some sites let sbatch print more.
    match = re.search(r"^(\d+)(;\S+)?$", out.decode(errors="replace"), re.ASCII | re.MULTILINE)
    if code or match is None:
        why = "; ".join(line.removeprefix("sbatch: error: ") for line in errors.splitlines())
        raise LaunchError(
            f"Slurm refused the job: {why or f'sbatch exited with code {code}'}. Correct "
            "run_on.slurm or launch.nnodes in the job file; --dry-run shows the script"
        )
    return match[1]


def read_jobs(ids: Sequence[str], timeout_s: float = _READ_S) -> dict[str, SlurmJob]:
    """Return the state of each job; one that is missing is unknown: Slurm does not respond."""
    asked = sorted(set(ids))
    if not asked:
        return {}
    listed = ",".join(asked)
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
            found[known["JobID"]] = _parse(known)
    if missing := [each for each in asked if each not in found]:
        found |= _read_forgotten(missing)
    return found


_states: dict[str, tuple[float, bool]] = {}  # by name: when it was read, and whether it had ended


def find_ended(names: Iterable[str]) -> set[str]:
    """Return those of some allocations that have ended; an unknown one has not."""
    since_t = time.monotonic() - _KEPT_S
    ids = {name: job_id for name in names if (job_id := id_of(name)) is not None}
    stale = [name for name in ids if name not in _states or _states[name][0] < since_t]
    jobs = read_jobs([ids[name] for name in stale])
    for name in stale:
        job = jobs.get(ids[name])
        _states[name] = (time.monotonic(), job is not None and job.has_ended)
    return {name for name in ids if _states[name][1]}


def list_hosts(nodes: str) -> tuple[str, ...]:
    """Return the names in a list of nodes, such as ``n[1-4]``; raises ``LaunchError``."""
    if not re.search(r"[\[,]", nodes):
        return (nodes,)
    answer = _read("scontrol", "show", "hostnames", nodes)
    if not answer:
        raise LaunchError(f"`scontrol show hostnames {nodes}` does not name the nodes of this job")
    return tuple(answer.split())


def cancel_job(job_id: str) -> None:
    """Cancel a job, unless it has ended already; raises ``LaunchError``."""
    _change("scancel", job_id)
    _states.pop(name_of(job_id), None)


def stop_job(job_id: str, *, at_once: bool = False) -> None:
    """Ask the batch step of a job to stop; cancel one that does not run, or ``at_once``."""
    job = read_jobs([job_id]).get(job_id)
    if at_once or job is None or job.state != "RUNNING":
        cancel_job(job_id)
    else:
        interrupt_job(job_id)


def wait_for_end(name: str, timeout_s: float) -> bool:
    """Wait until an allocation has ended; return whether it did in time."""
    until_t = time.monotonic() + timeout_s
    while not find_ended([name]):
        if time.monotonic() > until_t:
            return False
        time.sleep(_AGAIN_S)
        _states.pop(name, None)
    return True


def interrupt_job(job_id: str) -> None:
    """Send SIGINT to the batch step of a job, which then stops its training."""
    with contextlib.suppress(LaunchError):  # a file asks it for the same
        # Of a job that is queued again, scancel waits a minute for the batch step.
        _change("scancel", "--signal=INT", "--batch", job_id, timeout_s=_READ_S)


def requeue_job(job_id: str) -> None:
    """Queue the job of this process again, which ends it; raises ``LaunchError``."""
    _change("scontrol", "requeue", job_id)


def _parse(known: Mapping[str, str]) -> SlurmJob:
    return SlurmJob(
        known["State"].partition(" ")[0],
        known["Reason"] if known["Reason"] not in {"", "None"} else None,
        int(known["RestartCnt"]) if known["RestartCnt"].isdecimal() else 0,
        _parse_time(known["PreemptTime"]) is not None,
        _parse_time(known["StartTime"]),
        _parse_time(known["EndTime"]),
        known["TimeLimit"] or None,
        known["NodeList"] or None,
    )


def _parse_time(text: str) -> float | None:
    """Return Unix seconds of a time in UTC; ``None`` for ``N/A`` and the like."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def _read_forgotten(ids: Sequence[str]) -> dict[str, SlurmJob]:
    """Return the jobs that slurmctld has forgotten, from the accounting, if there is one."""
    found = dict.fromkeys(ids, SlurmJob(GONE))
    columns = "--format=JobIDRaw,State"
    answer = _read(
        *("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={','.join(ids)}", columns)
    )
    for line in (answer or "").splitlines():
        job_id, _, state = line.partition("|")
        # The accounting has jobs as running whose end slurmctld has not recorded before it forgot.
        if job_id in found and (word := state.partition(" ")[0]) in ENDED:
            found[job_id] = SlurmJob(word)
    return found


def _own_environment() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not _FOREIGN.match(name)}


def _read(*argv: str, timeout_s: float = _READ_S) -> str | None:
    """Return what a command prints; an empty text if it knows no such job, ``None`` if it fails."""
    environment = {**_own_environment(), "TZ": "UTC0"}  # local times repeat in autumn
    try:
        code, out, errors = run_briefly(argv, environment=environment, timeout_s=timeout_s)
    except OSError:  # it is not installed here, or does not end
        return None
    if code:
        return "" if "Invalid job id" in errors else None
    return out.decode(errors="replace")


def _change(*argv: str, timeout_s: float = _CHANGE_S) -> None:
    try:
        code, _, errors = run_briefly(argv, environment=_own_environment(), timeout_s=timeout_s)
    except OSError as error:
        raise LaunchError(f"{argv[0]}: {error.strerror or error}") from error
    has_ended = "Invalid job id" in errors or "already finished" in errors
    if code and not (has_ended and argv[0] == "scancel"):
        raise LaunchError(f"`{' '.join(argv)}` failed: {errors or f'exit code {code}'}")
