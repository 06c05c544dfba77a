"""Every system call of a write to a history fails, or is the last of its process."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from faults_audit import audit, build_trial, write_earlier
from faults_home import JOB, ROOT, Experiment, Finding, Home, build_library

from zeusrun.errors import ZeusrunError
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.trial import Trial, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_KILL_BEFORE, _KILL_AFTER, _SHORT = -1, -2, -3  # of faulty.c
_ERRORS = ("EIO", "ENOSPC", "EROFS", "EACCES")
HOWS = {
    **{name: (getattr(errno, name), 0) for name in _ERRORS},
    **{f"{name} from then on": (getattr(errno, name), 1) for name in _ERRORS},
    "a short write, then ENOSPC": (_SHORT, 0),
    "SIGKILL before it": (_KILL_BEFORE, 0),
    "SIGKILL after it": (_KILL_AFTER, 0),
}
_NEEDED = {"open", "write", "fsync", "rename", "flock", "mkdir"}
_MANY = 520  # trials, more than a history keeps in one file
_DAY_S = 86400


@dataclass(frozen=True)
class Fault:
    """A fault of one system call: its number from 1, its name and path, and what happens to it."""

    at: int
    call: str
    how: str

    @property
    def row(self) -> str:
        """The row of the table."""
        name = "SIGKILL" if "SIGKILL" in self.how else self.how.removesuffix(" from then on")
        return f"{name} at a system call of a write"


@dataclass(frozen=True)
class Past:
    """A history before the write: what it is called, a home to be copied, and its trials."""

    name: str
    begun: Home
    trials: tuple[Trial, ...]

    @property
    def next_number(self) -> int:
        """The number of the trial that is written."""
        return len(self.trials) + 1

    @property
    def next_name(self) -> str:
        """Its id."""
        return f"{JOB}-{self.next_number}-1"


class Writer:
    """``faults_writer.py`` in a process of its own, which forks for every fault."""

    def __init__(self, library: Path, errors: Path) -> None:
        """Start it; ``errors`` is where its standard error goes."""
        with errors.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, str(ROOT / "benchmarks" / "faults_writer.py")],
                env={**os.environ, "LD_PRELOAD": str(library)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )

    def write(
        self, home: Home, number: int, fault: Fault | None, journal: Path | None = None
    ) -> tuple[list[str], int]:
        """Begin and finish a trial of this number; return what was said, and the exit code."""
        directory = str(home.history_file.parent)
        how, lasting = (0, 0) if fault is None else HOWS[fault.how]
        order = {
            "directory": directory,
            "number": number,
            "prefix": directory,
            "at": 0 if fault is None else fault.at,
            "how": how,
            "lasting": lasting,
            "journal": "" if journal is None else str(journal),
        }
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the writer has no pipes")
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        said: list[str] = []
        for line in self._process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == "ended":
                return said, int(rest)
            said.append(line.strip())
        raise RuntimeError("the writer died")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def run_write_faults(folder: Path, jobs: int, only: str | None = None) -> Iterator[Experiment]:
    """Try every fault at every system call of a write to every kind of history, or only to one."""
    library = build_library(folder, ROOT / "benchmarks" / "faulty.c", "faulty.so")
    writers = [Writer(library, folder / f"writer-{number}.err") for number in range(jobs)]
    try:
        with ThreadPoolExecutor(jobs) as pool:
            for name, prepare in _STATES.items():
                if only not in (None, name):
                    continue
                begun = Home(folder / name.replace(" ", "-"))
                begun.folder.mkdir()
                past = Past(name, begun, tuple(prepare(begun)))
                faults = plan(past, writers[0])
                tasks = [
                    pool.submit(_try_some, folder, writer, past, faults[number::jobs])
                    for number, writer in enumerate(writers)
                ]
                for task in tasks:
                    yield from task.result()
    finally:
        for writer in writers:
            writer.close()


def plan(past: Past, writer: Writer) -> list[Fault]:
    """Count the system calls of a write that nothing happens to, and cross them with the faults."""
    home = _copy(past, past.begun.folder / "undisturbed")
    journal = home.folder / "journal"
    said, code = writer.write(home, past.next_number, None, journal)
    if said != ["begun", "finished"]:
        raise SystemExit(f"an undisturbed write does not end well: {said}, {code}")
    calls = [line.split(maxsplit=2) for line in journal.read_text().splitlines()]
    unseen = _NEEDED - {name for _, name, _ in calls}
    if unseen:
        raise SystemExit(f"{unseen} are never seen: faulty.c does not wrap what Python calls")
    return [
        Fault(int(at), f"{name} {Path(path).name}", how)
        for at, name, path in calls
        for how, (code, _) in HOWS.items()
        if (name == "write" or code != _SHORT) and (name != "unlock" or code < 0)
    ]


def _try_some(
    folder: Path, writer: Writer, past: Past, faults: Sequence[Fault]
) -> list[Experiment]:
    return [_try_once(folder, writer, past, fault) for fault in faults]


def _try_once(folder: Path, writer: Writer, past: Past, fault: Fault) -> Experiment:
    """Write under a fault, then read, and write again without."""
    name = f"{past.begun.folder.name}-{fault.at}-{list(HOWS).index(fault.how)}"
    home = _copy(past, folder / name)
    said, code = writer.write(home, past.next_number, fault)
    findings = list(_check_words(said, code, fault))
    history = TinyDBHistory(home.history_file.parent, lock_timeout_s=1.0)
    may_stay = set(TrialStatus)  # dispatched, too: nothing runs that could finish it
    expected = {}
    try:
        read = history.trials(JOB)
        findings += _check_state(past, read, said)
        following = build_trial(len(read) + 1, home.runs)
        history.begin(following, after=history.snapshot(JOB, 0).version)
        expected = {trial.trial: may_stay for trial in (*read[len(past.trials) :], following)}
    except (ZeusrunError, ValueError) as error:
        findings.append(Finding("wrong", f"what comes after: {error}"))
    found, _ = audit(home, past.trials, expected)
    return Experiment(
        fault=fault.row,
        label=f"{fault.how} at call {fault.at} ({fault.call}) of a write to a history {past.name}",
        replay=f"--io --io-past {past.name!r} --io-submits 0",
        findings=(*findings, *found),
        home=home.folder,
        facts={"at": fault.at, "call": fault.call, "how": fault.how, "said": said},
    )


def _check_words(said: Sequence[str], code: int, fault: Fault) -> Iterator[Finding]:
    killed = HOWS[fault.how][0] in (_KILL_BEFORE, _KILL_AFTER)
    refused = any(word.startswith("refused") for word in said)
    expected = -9 if killed else 6 if refused else 0
    if code != expected:
        yield Finding("wrong", f"the writer ended with {code}: {said}")


def _check_state(past: Past, read: Sequence[Trial], said: Sequence[str]) -> Iterator[Finding]:
    """Compare what is read with what was there, and with what was said to be written."""
    fresh = read[len(past.trials) :]
    if [trial.trial for trial in fresh] not in ([], [past.next_name]):
        yield Finding("duplicates", f"{[trial.trial for trial in fresh]}")
    status = fresh[0].status if fresh else None
    if "begun" in said and status is None:
        yield Finding("lost", "it was said to be begun")
    if "finished" in said and status is not TrialStatus.REACHED:
        yield Finding("lost", f"it was said to be finished, and is {status}")
    if "begun" not in said and status not in (None, TrialStatus.DISPATCHED):
        yield Finding("wrong", f"it is {status} before it was begun")


def _copy(past: Past, folder: Path) -> Home:
    home = Home(folder)
    if past.begun.path.exists():
        shutil.copytree(past.begun.path, home.path)  # with the times of the files
    home.path.mkdir(parents=True, exist_ok=True)
    return home


def _never_written(_home: Home) -> list[Trial]:
    return []


def _in_use(home: Home) -> list[Trial]:
    return write_earlier(home, 2)


def _yesterdays(home: Home) -> list[Trial]:
    trials = _in_use(home)
    _make_older(home)
    return trials


def _large(home: Home) -> list[Trial]:
    """Write a history as the first versions did: everything in one file."""
    _in_use(home)
    tables = json.loads(home.history_file.read_bytes())
    record = tables["trials"].popitem()[1]
    tables["trials"] = {
        str(number): {**record, "trial": f"{JOB}-{number}-1", "recurrence": number}
        for number in range(1, _MANY + 1)
    }
    home.history_file.write_text(json.dumps(tables))
    _make_older(home)
    return TinyDBHistory(home.history_file.parent).trials(JOB)


def _make_older(home: Home) -> None:
    then = time.time() - 2 * _DAY_S
    for path in home.history_file.parent.iterdir():
        os.utime(path, (then, then))


_STATES = {
    "never written": _never_written,
    "in use": _in_use,
    "not written since yesterday": _yesterdays,
    "of many trials in one file": _large,
}
