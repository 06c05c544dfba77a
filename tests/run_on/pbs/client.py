"""PBS by its own commands: qsub, qstat, qdel, qsig and qrerun."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.errors import LaunchError
from zeusrun.launcher.processes.programs import run_briefly
from zeusrun.run_on.registry import GONE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LOOK = "qstat -f {}"

_PREFIX = "pbs:"
_WORDS = {"Q": "QUEUED", "H": "QUEUED", "R": "RUNNING", "E": "RUNNING", "F": "ENDED"}


@dataclass(frozen=True)
class Job:
    """A job as PBS describes it."""

    state: str
    restarts: int = 0
    grace_s: float = 0.0

    @property
    def has_ended(self) -> bool:
        return self.state in {"ENDED", GONE}

    @property
    def has_begun(self) -> bool:
        return self.state != "QUEUED"

    @property
    def state_of_ticket(self) -> str:
        return "ended" if self.has_ended else "queued"


def name_of(number: str) -> str:
    return _PREFIX + number


def submit_script(script: Path, folder: Path, earlier: Iterable[str]) -> str:
    after = ":".join(each.removeprefix(_PREFIX) for each in earlier)
    depend = ["-W", f"depend=afterany:{after}"] if after else []
    code, out, errors = _run("qsub", *depend, str(script), folder=folder)
    if code:
        raise LaunchError(f"PBS did not take the job: {errors}")
    return name_of(out.strip())


def read_jobs(names: Iterable[str]) -> dict[str, Job]:
    found = {}
    for name in names:
        try:
            code, out, _ = _run("qstat", "-x", "-f", "-F", "json", name.removeprefix(_PREFIX))
        except LaunchError:
            continue
        jobs = {} if code else json.loads(out)["Jobs"]
        for each in jobs.values():
            found[name] = Job(_WORDS[each["job_state"]], each.get("run_count", 1) - 1)
        found.setdefault(name, Job(GONE))
    return found


def describe_job(name: str, job: Job | None) -> str:
    return f"{name}: PBS does not respond" if job is None else f"{name} is {job.state}"


def cancel_job(name: str) -> None:
    _run("qdel", name.removeprefix(_PREFIX))


def interrupt_job(name: str) -> None:
    _run("qsig", "-s", "INT", name.removeprefix(_PREFIX))


def explain_end(name: str, *, saved: bool) -> None:
    del name, saved


def _run(*argv: str, folder: Path | None = None) -> tuple[int, str, str]:
    try:
        variables = {**os.environ, **({} if folder is None else {"PBS_O_WORKDIR": str(folder)})}
        code, out, errors = run_briefly(argv, environment=variables, timeout_s=20.0)
    except OSError as error:
        raise LaunchError(f"{argv[0]}: {error.strerror or error}") from error
    return code, out.decode(errors="replace"), errors
