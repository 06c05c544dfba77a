"""The pod that this process runs in: its job, the other pods, and why a run ends."""

from __future__ import annotations

import json
import socket
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.errors import JobFileError, LaunchError, UsageError
from zeusrun.files.private import build_known
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.queue.admission import Request, check_not_ended
from zeusrun.reasons import ReasonCode
from zeusrun.run_on.kubernetes.client import CONTAINER
from zeusrun.run_on.registry import is_job
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.trial import Outcome, Trial

_RESOLVED_S = 1800.0  # the other pods may have to load their image
_POLL_S = 1.0


@dataclass(frozen=True)
class PodAllocation:
    """A job of Kubernetes, seen by its head. See ``Allocation``."""

    name: str  # in records: kubernetes:ml/digits-1a2b3
    hosts: tuple[str, ...]  # this one first
    keeps_files: bool  # whether the home of its pods is a volume

    def time_left_s(self) -> None:
        """There is no limit."""

    def find_cause(self) -> None:
        """Whoever deletes the pod, the run is preempted: its job or the next one continues it."""

    def check_sentinel(self) -> None:
        """Kubernetes sends its signal to this process."""

    def judge(self, trial: Trial, outcome: Outcome, *, saved: bool) -> Outcome:  # noqa: ARG002 - see Allocation
        """Return the outcome of a trial: if a pod is lost, all are started again, to continue."""
        if outcome.reason_code is not ReasonCode.HOST_LOST or not saved:
            return outcome
        return replace(outcome, status=TrialStatus.PREEMPTED, reason_code=ReasonCode.PREEMPTED)


def read_job(environment: Mapping[str, str]) -> tuple[JobSpec, Request]:
    """Return the job and the options of the submit, from the variables of the manifest.

    Raises:
        JobFileError: If the job file does not fit the files of this image.
        UsageError: If this is no pod of a submit.
    """
    name = environment.get("ZEUSRUN_ALLOCATION", "")
    try:
        text, record = environment["ZEUSRUN_JOB"], json.loads(environment["ZEUSRUN_REQUEST"])
        file, folder = Path(record["file"]).name, Path(record["folder"] or Path.cwd())
        request = build_known(Request, record, overrides=tuple(record.get("overrides", ())))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UsageError("this command is for a pod that `zeusrun submit` has made") from error
    if not is_job(name):
        raise UsageError(f"ZEUSRUN_ALLOCATION is {name!r}, which names no job of Kubernetes")
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary, file)
        copy.write_text(text, encoding="utf-8")
        try:
            spec = load_spec(copy, request.overrides, folder)
        except JobFileError as error:
            raise JobFileError(
                f"in the image, {str(error).replace(str(copy), file)}. Paths are relative to "
                f"{folder} there; run_on.kubernetes.folder names another folder of the image"
            ) from error
    return spec, replace(request, allocation=name, overlap="allow")


def list_pods(name: str, nodes: int) -> tuple[str, ...]:
    """Return the hosts of a job, its head first, as the headless service of JobSet names them."""
    own = name.rpartition("/")[2]
    if nodes == 1:
        return (socket.gethostname(),)
    return tuple(f"{own}-{CONTAINER}-0-{number}.{own}" for number in range(nodes))


def wait_for_names(job: str, hosts: Sequence[str], signals: Sequence[int]) -> None:
    """Wait until pods have addresses: they start one after the other; raises ``LaunchError``."""
    until_t = time.monotonic() + _RESOLVED_S
    for host in hosts:
        while True:
            check_not_ended(job, signals)
            try:
                socket.getaddrinfo(host, None)
                break
            except OSError as error:
                if time.monotonic() > until_t:
                    raise LaunchError(f"the pod {host} has no address: {error}") from error
            time.sleep(_POLL_S)
