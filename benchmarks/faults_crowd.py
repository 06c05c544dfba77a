"""Many commands on one home: submits started at once, and a mix of all verbs."""

from __future__ import annotations

import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faults_audit import audit
from faults_home import JOB, Experiment, Finding, Home, wait_for

from zeusrun.errors import ZeusrunError
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typing_extensions import Self

_LOOK_S = 0.001
_ALL_AT_ONCE_S = 900.0  # for fifty submits on two cores
_MIX = {"submit": 5, "history": 3, "cancel": 3, "repair": 2, "status": 2}
_HANDS = 4  # commands of the mix at a time


class Readers:
    """Reads beside the writers: the history file whenever it changes, and ``history --json``.

    A context manager. A trial that was seen must be seen ever after.

    Attributes:
        findings: What could not be read, or was seen and is gone.
        looks: How often the file was read, and how often the command was run.
    """

    def __init__(self, home: Home) -> None:
        self.findings: list[Finding] = []
        self.looks = {"file": 0, "command": 0}
        self._home = home
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,))
            for work in (self._read_file, self._run_history)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, work: Any) -> None:  # noqa: ANN401 - a bound method
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a reader that dies must not pass for content
            self.findings.append(Finding("wrong", f"a reader died: {error!r}"))

    def _read_file(self) -> None:
        before = None
        while not self._over.wait(_LOOK_S):
            try:
                status = self._home.history_file.stat()
                now = (status.st_ino, status.st_size, status.st_mtime_ns)
                if now != before:
                    json.loads(self._home.history_file.read_bytes())
                    self.looks["file"] += 1
                before = now
            except FileNotFoundError:
                if before is not None:
                    self.findings.append(Finding("unreadable", "the history file was gone"))
            except ValueError as error:
                self.findings.append(Finding("unreadable", f"the history file: {error}"))

    def _run_history(self) -> None:
        known: list[str] = []
        while not self._over.is_set():
            code = self._home.run("beside", "history", "--json")
            told = self._read_told(code)
            self.looks["command"] += 1
            if told is None:
                text = f"history --json: {code}: {self._home.complaint('beside')}"
                self.findings.append(Finding("unreadable", text))
                continue
            names = [trial["trial"] for trial in told]
            lost = set(known) - set(names)
            self.findings += [Finding("lost", f"{name} was there before") for name in sorted(lost)]
            known = names

    def _read_told(self, code: int | None) -> list[dict[str, Any]] | None:
        if code != 0:
            return None
        try:
            told = json.loads(self._home.output("beside").read_bytes())
        except ValueError:
            return None
        return told if isinstance(told, list) else None


def run_parallel(folder: Path, submits: int, rounds: int) -> Iterator[Experiment]:
    """Start so many submits of one job at once, so many times, and read beside them."""
    for number in range(rounds):
        yield _submit_at_once(folder / f"parallel-{number}", submits)


def _submit_at_once(folder: Path, submits: int) -> Experiment:
    folder.mkdir()
    home = Home(folder)
    job = home.write_job(1, 0.05)
    names = [f"submit-{number}" for number in range(submits)]
    begun_t = time.monotonic()
    with Readers(home) as readers:
        started = [home.start(name, "submit", job, "--json") for name in names]
        give_up_t = begun_t + _ALL_AT_ONCE_S
        codes = [wait_for(each, max(1.0, give_up_t - time.monotonic())) for each in started]
    findings = list(readers.findings)
    expected: dict[str, set[TrialStatus]] = {}
    for name, code in zip(names, codes, strict=True):
        told = home.last_line(name)
        if code != 0 or told is None:
            findings.append(Finding("wrong", f"{name}: {code}: {home.complaint(name)}"))
            continue
        for trial in told["trials"]:
            if trial["trial"] in expected:
                text = f"{trial['trial']} is what two submits say that they ran"
                findings.append(Finding("duplicates", text))
            expected[trial["trial"]] = {TrialStatus.REACHED}
    found, trials = audit(home, expected=expected)
    findings += found
    if len(trials) < submits:
        findings.append(Finding("lost", f"{submits} submits have left {len(trials)} trials"))
    return _closed(
        home,
        findings,
        fault=f"{submits} submits at once",
        label=f"{submits} submits of one job at once",
        replay=f"--parallel {submits} --rounds 1",
        facts={"seconds": time.monotonic() - begun_t, "looks": readers.looks},
    )


@dataclass
class _Mix:
    """What the hands of a mix have done so far.

    Attributes:
        home: Where.
        cancelled: The trials that were asked to stop.
        submitted: What submits say of their trials: the status by id.
        findings: What must not be.
        times: How often each verb was tried.
    """

    home: Home
    cancelled: set[str] = field(default_factory=set)
    submitted: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    times: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_MIX, 0))

    def work(self, hand: int, seed: int, until_t: float) -> None:
        """Run one command after another until a moment."""
        rng = random.Random(f"{seed}/{hand}")  # noqa: S311 - a mix, not a secret
        number = 0
        while time.monotonic() < until_t:
            (verb,) = rng.choices(list(_MIX), list(_MIX.values()))
            arguments = self._arguments(verb, rng)
            if arguments is not None:
                number += 1
                self._run(f"{hand}-{number}-{verb}", verb, *arguments)

    def _arguments(self, verb: str, rng: random.Random) -> list[str] | None:
        if verb == "submit":
            return [str(self.home.folder / f"{JOB}.yaml")]
        if verb != "cancel":
            return []
        running = self._running()
        if not running:
            time.sleep(0.1)
            return None
        trial = rng.choice(running)
        self.cancelled.add(trial)
        return [trial, *rng.choice(([], ["--now"]))]

    def _running(self) -> list[str]:
        try:
            trials = TinyDBHistory(self.home.history_file.parent).trials(JOB)
        except ZeusrunError as error:
            self.findings.append(Finding("unreadable", str(error)))
            return []
        return [trial.trial for trial in trials if not trial.status.finished]

    def _run(self, name: str, verb: str, *arguments: str) -> None:
        self.times[verb] += 1
        code = self.home.run(name, verb, *arguments, "--json")
        said = self.home.complaint(name)
        # A cancelled submit may end as it likes, as long as it is not a bug or a lost history; a
        # trial may have ended by itself before it could be cancelled.
        ended_well = code == 0
        if verb == "submit":
            ended_well = code is not None and code >= 0 and code not in (1, 2, 6)
        elif verb == "cancel":
            ended_well = code == 0 or (code == 2 and "No such" not in said)
        if not ended_well:
            self.findings.append(Finding("wrong", f"{verb}: {code}: {said}"))
            return
        try:
            told = json.loads(self.home.output(name).read_bytes() or b"null")
        except ValueError as error:
            self.findings.append(Finding("unreadable", f"what {verb} --json printed: {error}"))
            return
        for trial in (told or {"trials": []})["trials"] if verb == "submit" else ():
            if trial["trial"] in self.submitted:
                self.findings.append(Finding("duplicates", f"{trial['trial']}, by two submits"))
            self.submitted[trial["trial"]] = trial["status"]


def run_mix(folder: Path, seed: int, seconds: float) -> Experiment:
    """Run commands at random for so long, some at a time, and see what has become of the trials."""
    folder = folder / "mix"
    folder.mkdir()
    home = Home(folder)
    home.write_job(1, 0.2)
    mix = _Mix(home)
    until_t = time.monotonic() + seconds
    with Readers(home) as readers, ThreadPoolExecutor(_HANDS) as pool:
        for task in [pool.submit(mix.work, hand, seed, until_t) for hand in range(_HANDS)]:
            task.result()
    findings = [*readers.findings, *mix.findings]
    ways = {TrialStatus.REACHED, TrialStatus.CANCELLED}
    expected = {name: {TrialStatus(status)} for name, status in mix.submitted.items()}
    for name, (status,) in expected.items():
        if status is not TrialStatus.REACHED and (name not in mix.cancelled or status not in ways):
            findings.append(Finding("wrong", f"{name}, which nobody cancelled, is {status.value}"))
    found, trials = audit(home, expected=expected)
    findings += found
    if {trial.trial for trial in trials} != set(expected):
        text = f"the history has {len(trials)} trials, the submits told of {len(expected)}"
        findings.append(Finding("lost" if len(trials) < len(expected) else "wrong", text))
    return _closed(
        home,
        findings,
        fault=f"all verbs mixed, {seconds:g} s",
        label=f"{sum(mix.times.values())} commands, {_HANDS} at a time",
        replay=f"--mix {seconds:g} --seed {seed}",
        facts={"times": mix.times, "looks": readers.looks},
    )


def _closed(home: Home, findings: list[Finding], **words: Any) -> Experiment:  # noqa: ANN401
    left = home.processes()
    if left:
        names = ", ".join(sorted(str(process) for process in left))
        findings.append(Finding("processes", f"still there at the end: {names}"))
        home.end()
    return Experiment(findings=tuple(findings), home=home.folder, **words)
