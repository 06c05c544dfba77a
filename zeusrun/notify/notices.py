"""Builds the notices of how a recurrence ended, and sends them.

A notice is first written to a file, and another process delivers it. So no slow server holds up a
run, and no reboot loses a notice.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeusrun.analysis.usual import find_baseline, run_cost_j
from zeusrun.clock import timestamp
from zeusrun.cost import energy_text
from zeusrun.errors import ExitCode, HistoryError
from zeusrun.files.home import notices_directory
from zeusrun.files.lock import FileLock
from zeusrun.files.private import (
    check_version,
    make_folder,
    open_log,
    read_file,
    replace_file,
)
from zeusrun.launcher.processes.programs import run_bounded, start_detached
from zeusrun.plain_text import plain_text
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.errors import ZeusrunError
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.attempts.recurrence import SubmitResult
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
    names = {trial.trial for trial in result.trials}
    earlier = [trial for trial in trials if trial.trial not in names]
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
        argv = [sys.executable, "-m", "zeusrun.notify.notices", str(folder)]
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


_PAUSES_S = (0.0, 2.0, 15.0)
_GIVE_UP = 9
_MAX_BYTES = 1 << 20
VERSION = 1
"""The version of the files with notices."""
_VARIABLES = ("event", "job", "trial", "text")  # a command gets them as ZEUSRUN_EVENT and so on


def deliver_all(folder: Path, pauses_s: tuple[float, ...] = _PAUSES_S) -> None:
    """Deliver the notices in a folder, and those that arrive meanwhile."""
    lock = FileLock(folder / "lock")
    tried: set[Path] = set()
    # List again after each release: the sender of a new notice found the lock taken.
    while fresh := sorted(set(folder.glob("*.json")) - tried):
        with lock:
            if not lock.acquire():
                return  # another process delivers, and lists the folder again
            for path in fresh:
                tried.add(path)
                _deliver(path, pauses_s)


def _deliver(path: Path, pauses_s: tuple[float, ...]) -> None:
    try:
        letter = json.loads(read_file(path, _MAX_BYTES))
        check_version(letter, VERSION, path)
        content = json.dumps(letter["notice"]).encode()
        letter["tries"], letter["timeout_s"] = int(letter["tries"]), float(letter["timeout_s"])
        values = {name: letter["notice"][name] for name in _VARIABLES}
        event = {f"ZEUSRUN_{n.upper()}": str(v) for n, v in values.items() if v is not None}
    except HistoryError as error:  # the newer zeusrun delivers it
        _log(path.parent / "failed.log", str(error))
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        path.unlink(missing_ok=True)  # not a notice
        return
    for pause_s in pauses_s:
        time.sleep(pause_s)
        letter["tries"] += 1
        try:
            problem = _try(letter, content, event)
        except Exception as error:  # noqa: BLE001 - the other notices must still be delivered
            problem = f"{type(error).__name__}: {error}"
        if not problem:
            path.unlink(missing_ok=True)
            return
        _log(path.parent / "failed.log", f"{letter['notice']['text']}: {problem}")
    if letter["tries"] >= _GIVE_UP:
        path.unlink(missing_ok=True)
    else:
        with suppress(OSError):
            replace_file(path, json.dumps(letter).encode())


def _try(letter: dict[str, Any], content: bytes, event: dict[str, str]) -> str:
    """Deliver to the URL and the command unless they have the notice; return the problems."""
    problems, timeout_s = {}, letter["timeout_s"]
    if letter["url"]:
        problems["url"] = _post(letter["url"], content, timeout_s)
    if letter["command"]:
        problems["command"] = _run(letter["command"], content, event, timeout_s)
    letter |= {way: None for way, problem in problems.items() if not problem}
    return "; ".join(filter(None, problems.values()))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a redirected POST becomes a GET without content."""

    def redirect_request(self, *_: object) -> None:
        """Follow no redirect; it becomes an HTTP error."""


def _post(url: str, content: bytes, timeout_s: float) -> str:
    headers = {"Content-Type": "application/json", "User-Agent": "zeusrun"}
    request = urllib.request.Request(url, content, headers)  # noqa: S310 - the job file's own, http(s)
    problem = f"POST: it took longer than {timeout_s:g} s"

    def post() -> None:
        nonlocal problem
        try:
            urllib.request.build_opener(_NoRedirects).open(request, timeout=timeout_s).close()
            problem = ""
        except Exception as error:  # noqa: BLE001 - any error is a reason
            problem = f"POST: {error}"

    # The timeout of a socket limits each read, and no timeout limits name resolution: a slow server
    # would delay all other notices.
    thread = threading.Thread(target=post, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return problem


def _run(command: list[str], content: bytes, event: dict[str, str], timeout_s: float) -> str:
    try:
        code, complaint = run_bounded(command, content, {**os.environ, **event}, timeout_s)
    except OSError as error:  # TimeoutError is one
        return f"{command[0]}: {error.strerror or error}"
    said = f": {complaint[-500:]}" if complaint else ""
    return "" if code == 0 else f"{command[0]} ended with exit code {code}{said}"


def _log(path: Path, text: str) -> None:
    with suppress(OSError), open(open_log(path), "ab") as file:  # noqa: PTH123 - a descriptor
        line = plain_text(text).replace("\n", " ")
        file.write(f"{timestamp()} {line}\n".encode(errors="replace"))


if __name__ == "__main__":
    deliver_all(Path(sys.argv[1]))
