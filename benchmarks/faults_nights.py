"""Nights: ticks at once, homes that share a crontab, a disk that fills up, bits and files."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from faults_audit import write_earlier
from faults_home import JOB, ROOT, Experiment, Finding, Home, wait_for
from faults_submits import small_disk

from zeusrun.errors import HistoryError
from zeusrun.history.tinydb.store import TinyDBHistory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zeusrun.trial import Trial

_AGAIN = "--nights"
_TICKS = 6
_HOMES = 6
_FLIPS = 600
_MENDED = 20  # of the flips that are noticed, restored
_EARLIER = 5
_FILLS = ROOT / "tests" / "children" / "fills_the_disk.py"
_CRONTAB = """#!/bin/sh
case "$1" in
-l) [ -e '{spool}' ] || {{ echo "no crontab for me" >&2; exit 1; }}; cat '{spool}';;
-r) rm '{spool}';;
-) cat > '{spool}.new'; mv '{spool}.new' '{spool}';;
esac
"""


def run_nights(folder: Path, seed: int) -> Iterator[Experiment]:
    """Try all of it once."""
    yield _ticks_at_once(Home(_made(folder / "ticks")))
    yield _homes_at_once(_made(folder / "homes"))
    yield _flipped_bits(Home(_made(folder / "bits")), seed)
    for kind, put in _IN_THE_WAY.items():
        yield _strange_file(Home(_made(folder / kind)), kind, put)
    home = Home(_made(folder / "disk"))
    home.path.mkdir()
    with small_disk(home.path) as mounted:
        if mounted:
            yield _full_in_mid_run(home)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _crontab(folder: Path) -> dict[str, str]:
    """Make a crontab(1) of our own; return the variables by which it is found."""
    commands = _made(folder / "bin")
    (commands / "crontab").write_text(_CRONTAB.format(spool=folder / "spool"))
    (commands / "crontab").chmod(0o700)
    return {"PATH": f"{commands}:{os.environ['PATH']}"}


def _ticks_at_once(home: Home) -> Experiment:
    """Start six ticks in the minute of an occurrence: one run must come of it."""
    job, findings = home.write_job(1, 0.05), []
    code = home.run("add", "schedule", "add", job, "* * * * *", "--no-cron")
    if code != 0:
        findings.append(Finding("wrong", f"schedule add: {code}: {home.complaint('add')}"))
    time.sleep(61 - time.time() % 60)  # until the next occurrence
    ticks = [home.start(f"tick{n}", "schedule", "tick") for n in range(_TICKS)]
    if any(wait_for(tick) != 0 for tick in ticks):
        findings.append(Finding("wrong", "a tick did not end well"))
    schedule = json.loads((home.path / "schedules" / f"{JOB}.json").read_text())
    if schedule["cursor"]["tries"] > 1:
        findings.append(Finding("duplicates", f"{schedule['cursor']['tries']} processes"))
    until_t = time.monotonic() + 120
    while time.monotonic() < until_t:
        schedule = json.loads((home.path / "schedules" / f"{JOB}.json").read_text())
        if any(each["result"] == "ended" for each in schedule["firings"]):
            break
        time.sleep(0.2)
    results = [each["result"] for each in schedule["firings"]]
    if results != ["ended"]:
        findings.append(Finding("lost", f"the occurrence: {results}"))
    trials = TinyDBHistory(home.history_file.parent).trials(JOB)
    if len(trials) != 1:
        findings.append(Finding("duplicates", f"{len(trials)} trials"))
    fault = f"{_TICKS} ticks at once"
    return Experiment(fault, fault, _AGAIN, tuple(findings), home.folder)


def _homes_at_once(folder: Path) -> Experiment:
    """Schedule a job from six homes of one user at once: the crontab must name each."""
    variables = _crontab(folder) | {"TMPDIR": str(folder)}
    homes = [Home(_made(folder / str(number))) for number in range(_HOMES)]
    adding = [
        home.start("add", "schedule", "add", home.write_job(1, 0.05), "0 2 * * *", **variables)
        for home in homes
    ]
    findings = [
        Finding("wrong", f"schedule add: {home.complaint('add')}")
        for home, process in zip(homes, adding, strict=True)
        if wait_for(process) != 0
    ]
    table = (folder / "spool").read_text()
    missing = [home.path for home in homes if f"({home.path})" not in table]
    findings += [Finding("lost", f"the crontab has no entry of {path}") for path in missing]
    fault = f"{_HOMES} homes change the crontab at once"
    return Experiment(fault, fault, _AGAIN, tuple(findings), folder)


def _flipped_bits(home: Home, seed: int) -> Experiment:
    """Flip single bits of a history: each must be noticed or harmless, and can be mended."""
    whole, findings, noticed = _write_past(home), [], 0
    path, content = home.history_file, home.history_file.read_bytes()
    rng = random.Random(seed)  # noqa: S311 - bits, not secrets
    for _ in range(_FLIPS):
        flipped = bytearray(content)
        flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        try:
            if TinyDBHistory(path.parent).trials(JOB) != whole:
                findings.append(Finding("wrong", "a changed record was read as it is"))
        except HistoryError:
            noticed += 1
            if noticed <= _MENDED:
                findings += _restored(home, f"restore{noticed}", whole)
    fault = f"{_FLIPS} flipped bits, one at a time"
    facts = {"noticed": noticed}
    return Experiment(fault, fault, _AGAIN, tuple(findings), home.folder, facts)


def _write_past(home: Home) -> list[Trial]:
    """Write trials that have ended, in the history and in their run directories."""
    trials = write_earlier(home, _EARLIER)
    for trial in trials:
        record = json.dumps({"version": 1, **trial.to_json()})
        Path(trial.run_dir, "trial.json").write_text(record)
    return trials


def _restored(home: Home, name: str, whole: list[Trial]) -> list[Finding]:
    """Restore a history; return what is wrong then."""
    code = home.run(name, "repair", "--restore", JOB)
    if code != 0:
        return [Finding("wrong", f"repair --restore: {code}: {home.complaint(name)}")]
    trials = TinyDBHistory(home.history_file.parent).trials(JOB)
    return [] if trials == whole else [Finding("lost", f"{len(trials)} trials were restored")]


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # a name of a socket is short
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


_IN_THE_WAY: dict[str, Callable[[Path], None]] = {
    "directory": Path.mkdir,
    "pipe": os.mkfifo,
    "circle": lambda path: path.symlink_to(path.name),
    "socket": _socket,
    "device": lambda path: path.symlink_to(os.devnull),
}


def _strange_file(home: Home, kind: str, put: Callable[[Path], None]) -> Experiment:
    """Put something else in the place of a history: it is told at once, and mended."""
    whole = _write_past(home)
    home.history_file.unlink()
    put(home.history_file)
    findings = []
    for verb in (("history",), ("status",), ("show", f"{JOB}-1-1"), ("explain", JOB)):
        home.write_job(1, 0.05)
        code = home.run(verb[0], *verb)
        if code != HistoryError.exit_code or JOB not in home.complaint(verb[0]):
            findings.append(Finding("wrong", f"{verb}: {code}: {home.complaint(verb[0])}"))
    findings += _restored(home, "restore", whole)
    fault = f"a {kind} in the place of a history"
    return Experiment(fault, fault, _AGAIN, tuple(findings), home.folder)


def _full_in_mid_run(home: Home) -> Experiment:
    """Fill the disk during a run: one that prints goes on, one that saves says why it ends."""
    job, findings = home.write_job(1, 0.05), []
    spec = yaml.safe_load(job.read_text())
    for argument, expected, status in (("--prints", 0, "REACHED"), ("--saves", 3, "FAILED")):
        job.write_text(yaml.safe_dump({**spec, "script": str(_FILLS), "args": [argument]}))
        code = home.run("full", "submit", job, "--json")
        (trial,) = (home.last_line("full") or {"trials": [{}]})["trials"]
        said = (code, trial.get("status"))
        if said != (expected, status):
            findings.append(Finding("wrong", f"{said}, {trial.get('reason')}"))
        elif expected and trial["reason_code"] != "disk_full":
            findings.append(Finding("wrong", f"the reason: {trial['reason']}"))
        for ballast in home.runs.glob("*/ballast"):
            ballast.unlink()
    fault = "a disk that is full in mid-run"
    return Experiment(fault, fault, _AGAIN, tuple(findings), home.folder)
