"""Builds the notices of how a recurrence ended, and sends them.

A notice is first written to a file, and another process delivers it. So no slow server holds up a
run, and no reboot loses a notice.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeusrun.analysis.cost_baseline import find_baseline, run_cost_j
from zeusrun.clock import timestamp
from zeusrun.cost import energy_text
from zeusrun.errors import ExitCode
from zeusrun.files.atomic import replace_file
from zeusrun.files.home import notices_directory
from zeusrun.files.private import make_folder
from zeusrun.launcher.processes.programs import start_detached
from zeusrun.notify.delivery import VERSION
from zeusrun.plain_text import plain_text
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.errors import ZeusrunError
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.recurrence import SubmitResult
    from zeusrun.trial import Trial

_NOT_AN_ENDING = {TrialStatus.CANCELLED, TrialStatus.PREEMPTED, TrialStatus.DISPATCHED}


@dataclass(frozen=True)
class Notice:
    """One notice; a field is ``None`` if it is unknown or does not apply."""

    event: str  # reached, missed, failed, lost, regression or recovered
    job: str
    text: str  # one sentence for people
    trial: str | None = None
    recurrence: int | None = None
    status: str | None = None
    reason: str | None = None
    reason_code: str | None = None  # see ``ReasonCode``
    exit_code: int | None = None  # of the submit
    cost_j: float | None = None
    usual_cost_j: float | None = None  # what a run with this batch size usually costs
    run_dir: str | None = None
    host: str = field(default_factory=socket.gethostname)
    at: str = field(default_factory=timestamp)  # RFC 3339


def build_notices(trials: Sequence[Trial], result: SubmitResult) -> list[Notice]:
    """Return the notices of a submit; ``trials`` are the newest of its job, oldest first."""
    last, code = result.trials[-1], int(result.exit_code)
    if code == ExitCode.TARGET_MISSED:
        attempts = "" if result.attempts < 2 else f" in {result.attempts} attempts"
        text = f"{last.trial} missed its target{attempts}: {last.reason}"
        return [_notice("missed", last, text, code)]
    if code in {ExitCode.TRAINING_FAILED, ExitCode.TIMED_OUT}:
        text = f"{last.trial} ended as {last.status.value}: {last.reason}"
        return [_notice("failed", last, text, code)]
    if not result.reached:
        return []  # a user or the system stopped it, and knows
    cost = "" if last.cost_j is None else f", cost {energy_text(last.cost_j)}"
    text = f"{last.trial} reached its target: {last.reason}{cost}"
    notices = [_notice("reached", last, text, code)]
    own = {trial.trial for trial in result.trials}
    earlier = [trial for trial in trials if trial.trial not in own]
    before = [trial for trial in earlier if trial.status not in _NOT_AN_ENDING][-1:]
    if before and before[0].status is not TrialStatus.REACHED:
        after = f"{before[0].trial} ({before[0].status.value})"
        text = f"{last.job} reaches its target again, after {after}"
        notices.append(_notice("recovered", last, text, code))
    usual, cost_j = find_baseline(earlier, last), run_cost_j(last)
    if usual is not None and cost_j is not None and cost_j > usual.high_j:
        text = (
            f"{last.trial} cost {energy_text(cost_j)}, {cost_j / usual.cost_j:.1f} times "
            f"what batch size {last.global_batch_size} usually does ({energy_text(usual.cost_j)} "
            f"in {usual.runs} runs)"
        )
        notices.append(_notice("regression", last, text, code, usual.cost_j))
    return notices


def lost_notices(lost: Sequence[Trial]) -> list[Notice]:
    """Return the notices of trials whose launchers have died."""
    return [_notice("lost", each, f"{each.trial} was lost: {each.reason}") for each in lost]


def failure_notice(job: str, error: ZeusrunError) -> Notice:
    """Return the notice of a submit that failed before a trial ended."""
    text, code = f"{job} did not run: {error}", int(error.exit_code)
    return Notice("failed", job, text, reason=str(error), exit_code=code)


def _notice(
    event: str, trial: Trial, text: str, code: int | None = None, usual_j: float | None = None
) -> Notice:
    return Notice(
        event=event,
        job=trial.job,
        text=text,
        trial=trial.trial,
        recurrence=trial.recurrence,
        status=trial.status.value,
        reason=trial.reason,
        reason_code=trial.reason_code and trial.reason_code.value,
        exit_code=code,
        cost_j=trial.cost_j,
        usual_cost_j=usual_j,
        run_dir=trial.run_dir,
    )


def send(
    home: Path, spec: JobSpec, notices: Sequence[Notice], environment: Mapping[str, str]
) -> None:
    """Write the notices that a job asks for, and start a process that delivers them.

    ``environment`` is that of the job's ``notify`` command.

    Raises:
        OSError: If a notice cannot be written, or the process cannot be started.
    """
    wanted = [notice for notice in notices if notice.event in spec.notify.on]
    if not wanted:
        return
    folder = notices_directory(home)
    make_folder(folder)
    for number, notice in enumerate(wanted):
        path = folder / f"{notice.at}-{os.getpid()}-{number}.json"
        replace_file(path, json.dumps(_letter(spec, notice)).encode())
    with Path(os.devnull).open("wb") as null:
        argv = [sys.executable, "-m", "zeusrun.notify.delivery", str(folder)]
        start_detached(argv, environment, null.fileno())


def _letter(spec: JobSpec, notice: Notice) -> dict[str, Any]:
    notify = spec.notify
    fields = asdict(notice).items()
    return {
        "version": VERSION,
        "notice": {k: plain_text(v) if isinstance(v, str) else v for k, v in fields},
        "url": notify.url,
        "command": spec.notify_command(),
        "timeout_s": notify.timeout_s,
        "tries": 0,
    }
