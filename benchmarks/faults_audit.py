"""What must hold of a home after whatever happened in it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from faults_home import JOB, Finding

from zeusrun.clock import timestamp
from zeusrun.errors import ZeusrunError
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.trial import Outcome, Stage, Trial, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from faults_home import Home

_LITTER = (".tmp", ".new", ".reserve", ".part", ".ending")


@dataclass(frozen=True)
class Written:
    """What the ranks of a trial wrote before they died.

    Attributes:
        epochs: The last epoch reported; ``None`` if none was.
        ended: The ranks whose script ended well.
        reached: Whether a report was at the target.
    """

    epochs: int | None
    ended: frozenset[int]
    reached: bool


def read_written(paths: RunPaths, target: float) -> Written:
    """Read the sidecar by hand, not by zeusrun; a torn last line is no event."""
    try:
        lines = paths.sidecar.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        lines = []
    events = [json.loads(line) for line in lines]
    reports = [event for event in events if event["event"] == "reported"]
    ended = [e["rank"] for e in events if e["event"] == "ended" and e["code"] == 0]
    return Written(
        epochs=max((event["epoch"] for event in reports), default=None),
        ended=frozenset(ended),
        reached=any(event["metrics"]["accuracy"] >= target for event in reports),
    )


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file; ``None`` without one, or in the middle of nowhere."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def write_earlier(home: Home, count: int) -> list[Trial]:
    """Give a home a past: trials that reached their target, which must stay as they are."""
    history = TinyDBHistory(home.path / "history")
    trials = []
    for number in range(1, count + 1):
        run_dir = home.runs / f"{JOB}-{number}-1"
        run_dir.mkdir(parents=True, mode=0o700)
        trial = build_trial(number, run_dir)
        history.begin(trial, after=history.snapshot(JOB, 0).version)
        trials.append(history.finish(trial.trial, build_outcome()))
    return trials


def build_trial(number: int, run_dir: Path) -> Trial:
    """Return a dispatched trial of the job."""
    return Trial(
        trial=f"{JOB}-{number}-1",
        job=JOB,
        recurrence=number,
        attempt=1,
        global_batch_size=32,
        world_size=2,
        started_at=timestamp(),
        metric="accuracy",
        run_dir=str(run_dir),
        stage=Stage.EXPLORE,
        why="it was written by hand",
        mode="max",
        target=0.5,
        max_epochs=5,
        eta_knob=0.5,
        uuid=uuid4().hex,
    )


def build_outcome() -> Outcome:
    """Return an outcome that reached the target."""
    return Outcome(TrialStatus.REACHED, "it was written by hand", timestamp(), time_s=1.0, epochs=4)


def audit(
    home: Home,
    earlier: Sequence[Trial] = (),
    expected: Mapping[str, Collection[TrialStatus]] | None = None,
) -> tuple[list[Finding], list[Trial]]:
    """Look for what must not be in a home where nothing runs any more.

    Args:
        home: Where.
        earlier: Trials that were finished before; they must be there, unchanged.
        expected: The ids of trials that must be there, and the statuses that would be true.

    Returns:
        What was found, and the trials.
    """
    findings = list(_unreadable(home))
    for report in home.folder.glob("zeusrun-bug-*"):
        last = report.read_text(errors="replace").strip().splitlines()[-1:]
        findings.append(Finding("wrong", f"a bug was reported: {''.join(last)}; {report}"))
    try:
        trials = TinyDBHistory(home.path / "history").trials(JOB)
    except (ZeusrunError, ValueError) as error:
        return [*findings, Finding("unreadable", f"the history: {error}")], []
    expected = expected or {}
    findings += _doubles(trials)
    findings += _untrue({trial.trial: trial for trial in trials}, earlier, expected)
    for trial in trials:
        if not trial.status.finished and trial.trial not in expected:
            findings.append(Finding("wrong", f"{trial.trial} is DISPATCHED, and nothing runs"))
    findings += _left_behind(home, {trial.trial for trial in trials})
    return findings, trials


def _doubles(trials: Sequence[Trial]) -> Iterable[Finding]:
    for what, counted in (
        ("id", Counter(trial.trial for trial in trials)),
        ("number", Counter(f"{trial.recurrence}-{trial.attempt}" for trial in trials)),
    ):
        for value, times in counted.items():
            if times > 1:
                yield Finding("duplicates", f"the {what} {value} is there {times} times")


def _untrue(
    known: Mapping[str, Trial],
    earlier: Sequence[Trial],
    expected: Mapping[str, Collection[TrialStatus]],
) -> Iterable[Finding]:
    for trial in earlier:
        if trial.trial not in known:
            yield Finding("lost", f"{trial.trial}, which was finished before")
        elif known[trial.trial] != trial:
            yield Finding("wrong", f"{trial.trial} was finished before, and changed")
    for name, statuses in expected.items():
        if name not in known:
            yield Finding("lost", f"{name} is not in the history")
        elif known[name].status not in statuses:
            ended = f"{known[name].status.value} ({known[name].reason})"
            true = " or ".join(status.value for status in statuses)
            yield Finding("wrong", f"{name} is {ended}, not {true}")


def _unreadable(home: Home) -> Iterable[Finding]:
    for path in (home.path / "history").rglob("*.json*"):
        if path.is_file() and not path.name.endswith((".lock", *_LITTER)):
            try:
                json.loads(path.read_bytes())
            except (OSError, ValueError) as error:
                yield Finding("unreadable", f"{path}: {error}")


def _left_behind(home: Home, known: set[str]) -> Iterable[Finding]:
    for path in home.path.rglob("*"):
        if path.name.endswith(_LITTER) or ".corrupt-" in path.name:
            yield Finding("files", str(path))
    for path in (home.path / "gpus").glob("*.limit.json"):
        yield Finding("files", str(path))
    runs = home.runs.iterdir() if home.runs.is_dir() else ()
    for run_dir in sorted(set(runs)):
        if run_dir.name not in known:
            ran = RunPaths(run_dir).torchrun_log.exists()
            kind = "lost" if ran else "files"
            yield Finding(kind, f"{run_dir} is of no trial in the history")
