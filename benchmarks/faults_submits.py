"""Whole submits under a fault of the disk, and beside a writer that stands still."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from faults_audit import audit, build_trial, read_json, write_earlier
from faults_home import GONE_S, JOB, ROOT, Experiment, Finding, Home, build_library, wait_until
from faults_io import HOWS, Fault

from zeusrun.errors import HistoryError
from zeusrun.files.lock import FileLock
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.launcher.processes.torchrun import TICK_S
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_EARLIER = 2
_DISK_MB = 2
_HISTORY_ERROR = 6
_BAD_CODES = (1, 2)  # a bug, and what only flags and job files may be blamed for


def run_submit_faults(folder: Path, seed: int, count: int, jobs: int) -> Iterator[Experiment]:
    """Try a fault at so many of the launcher's system calls, spread over a whole submit."""
    library = build_library(folder, ROOT / "benchmarks" / "faulty.c", "faulty-submit.so")
    calls = _count_calls(folder, library)
    rng = random.Random(seed)  # noqa: S311 - moments, not secrets
    # The first calls of each kind are all different; later ones are mostly looks at growing files.
    seldom = [n for n, call in enumerate(calls, 1) if calls.index(call) == n - 1]
    faults = [
        Fault(at, calls[at - 1], rng.choice(list(HOWS)))
        for at in sorted(rng.choices(seldom, k=count))
    ]
    with ThreadPoolExecutor(jobs) as pool:
        tasks = [
            pool.submit(_submit_once, folder / f"submit-{number}", library, seed, count, fault)
            for number, fault in enumerate(faults)
        ]
        for task in tasks:
            yield task.result()


def _count_calls(folder: Path, library: Path) -> list[str]:
    """Return the launcher's system calls in its home, as ``name path``, the path from its home."""
    home = Home(folder / "undisturbed")
    home.folder.mkdir()
    write_earlier(home, _EARLIER)
    job = home.write_job(1, 0.05)
    code = home.run("faulty", "submit", job, "--json", **_told(library, home, 0, (0, 0)))
    if code != 0:
        raise SystemExit(f"an undisturbed submit does not end well: {home.complaint('faulty')}")
    lines = (home.folder / "journal").read_text().replace(f"{home.path}/", "").splitlines()
    return [line.split(" ", 1)[1] for line in lines]


def _told(library: Path, home: Home, at: int, how: tuple[int, int]) -> dict[str, str]:
    return {
        "LD_PRELOAD": str(library),
        "FAULTY_PREFIX": str(home.path),
        "FAULTY_AT": str(at),
        "FAULTY_HOW": str(how[0]),
        "FAULTY_LASTING": str(how[1]),
        "FAULTY_JOURNAL": str(home.folder / "journal"),
    }


def _submit_once(folder: Path, library: Path, seed: int, count: int, fault: Fault) -> Experiment:
    folder.mkdir()
    home = Home(folder)
    earlier = write_earlier(home, _EARLIER)
    job = home.write_job(1, 0.05)
    told = _told(library, home, fault.at, HOWS[fault.how])
    code = home.run("faulty", "submit", job, "--json", **told)
    findings = []
    killed = "SIGKILL" in fault.how and code == -signal.SIGKILL
    if not killed and (code is None or code < 0 or code in _BAD_CODES):
        findings.append(Finding("wrong", f"it ended with {code}: {home.complaint('faulty')}"))
    findings += _check_gone(home)
    expected: dict[str, set[TrialStatus]] = {}
    for trial in (home.last_line("faulty") or {"trials": []})["trials"]:
        expected[trial["trial"]] = {TrialStatus(trial["status"])}
    for trial in TinyDBHistory(home.history_file.parent).trials(JOB)[_EARLIER:]:
        outcome = read_json(RunPaths(home.runs / trial.trial).trial) or {}
        decided = TrialStatus(outcome.get("status", "DISPATCHED"))
        status = trial.status if trial.status.finished else decided
        true = {status} if status.finished else {TrialStatus.LOST}
        expected.setdefault(trial.trial, true)
    findings += _run_again(home, expected)
    found, _ = audit(home, earlier, expected)
    name = "SIGKILL" if "SIGKILL" in fault.how else fault.how.removesuffix(" from then on")
    return Experiment(
        fault=f"{name} at a system call of a submit",
        label=f"{fault.how} at call {fault.at} ({fault.call}) of a submit",
        replay=f"--io --io-submits {count} --seed {seed}",
        findings=(*findings, *found),
        home=folder,
        facts={"code": code},
    )


def _check_gone(home: Home) -> list[Finding]:
    if wait_until(lambda: not home.processes(), GONE_S, TICK_S) is not None:
        return []
    left = ", ".join(sorted(map(str, home.processes())))
    home.end()
    return [Finding("processes", f"alive {GONE_S:g} s later: {left}")]


def _run_again(home: Home, expected: dict[str, set[TrialStatus]]) -> list[Finding]:
    """Run the job once more, undisturbed, and expect its trials, too."""
    code = home.run("next", "submit", home.folder / f"{JOB}.yaml", "--json")
    for trial in (home.last_line("next") or {"trials": []})["trials"]:
        expected[trial["trial"]] = {TrialStatus.REACHED}
    if code == 0:
        return []
    return [Finding("wrong", f"the next submit: {code}: {home.complaint('next')}")]


def run_disks(folder: Path) -> Iterator[Experiment]:
    """Try a full disk and a read-only one, where this user may mount one, and a stopped writer."""
    for fault, spoil, mend in (
        ("full disk", _fill, _empty),
        ("read-only disk", _remount("ro"), _remount("rw")),
    ):
        home = Home(folder / fault.replace(" ", "-"))
        home.path.mkdir(parents=True)
        with small_disk(home.path) as mounted:
            if mounted:
                yield _on_spoilt_disk(home, fault, spoil, mend)
    yield _beside_stopped_writer(Home(folder / "stopped"))


@contextmanager
def small_disk(directory: Path) -> Iterator[bool]:
    """Mount a small disk over a directory; yields whether that was permitted."""
    size = f"size={_DISK_MB}m,mode=700"  # by default everybody may write to a tmpfs
    mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(directory)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(directory)], check=True)


def _fill(directory: Path) -> None:
    with (directory / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return


def _empty(directory: Path) -> None:
    (directory / "ballast").unlink()


def _remount(mode: str) -> Callable[[Path], None]:
    def remount(directory: Path) -> None:
        subprocess.run(["mount", "-o", f"remount,{mode}", str(directory)], check=True)

    return remount


def _on_spoilt_disk(
    home: Home, fault: str, spoil: Callable[[Path], None], mend: Callable[[Path], None]
) -> Experiment:
    earlier = write_earlier(home, _EARLIER)
    job = home.write_job(1, 0.05)
    spoil(home.path)
    findings = []
    if home.run("history", "history", "--json") != 0:
        text = f"the history cannot be read: {home.complaint('history')}"
        findings.append(Finding("unreadable", text))
    code = home.run("spoilt", "submit", job, "--json")
    if code != _HISTORY_ERROR:
        text = f"a submit ended with {code}: {home.complaint('spoilt')}"
        findings.append(Finding("wrong", text))
    findings += _check_gone(home)
    if TinyDBHistory(home.history_file.parent).trials(JOB) != earlier:
        findings.append(Finding("lost", "the history is not as it was"))
    mend(home.path)
    expected: dict[str, set[TrialStatus]] = {}
    findings += _run_again(home, expected)
    found, _ = audit(home, earlier, expected)
    return Experiment(fault, fault, "--io --io-submits 0", (*findings, *found), home.folder)


def _beside_stopped_writer(home: Home) -> Experiment:
    """Stop a process that holds the history's lock: readers go on, a writer says what is wrong."""
    earlier = write_earlier(home, _EARLIER)
    home.write_job(1, 0.05)
    lock = home.history_file.with_name(f"{JOB}.json.lock")
    holder = os.fork()
    if holder == 0:
        try:
            held = FileLock(lock)
            held.acquire()
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            os._exit(1)
    findings = []
    try:
        os.waitpid(holder, os.WUNTRACED)
        if home.run("history", "history", "--json") != 0:
            text = f"the history cannot be read: {home.complaint('history')}"
            findings.append(Finding("unreadable", text))
        findings += _check_refused(home, lock)
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
    expected: dict[str, set[TrialStatus]] = {}
    findings += _run_again(home, expected)
    found, _ = audit(home, earlier, expected)
    name = "SIGSTOP to the holder of the lock"
    return Experiment(name, name, "--io --io-submits 0", (*findings, *found), home.folder)


def _check_refused(home: Home, lock: Path) -> list[Finding]:
    history = TinyDBHistory(home.history_file.parent, lock_timeout_s=0.2)
    try:
        following = build_trial(_EARLIER + 1, home.runs)
        history.begin(following, after=history.snapshot(JOB, 0).version)
    except HistoryError as error:
        if str(lock) in str(error):
            return []
        return [Finding("wrong", f"a writer does not name the lock: {error}")]
    return [Finding("wrong", "a writer wrote though another had the lock")]
