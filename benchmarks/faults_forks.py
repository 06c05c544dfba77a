"""SIGKILL to the watchdog of a script that starts a daemon every 20 ms: what is left of them."""

from __future__ import annotations

import contextlib
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psutil
from faults_home import GONE_S, ROOT, Experiment, Finding, Home, describe, wait_for, wait_until
from faults_scene import cast

from zeusrun.launcher.processes.torchrun import TICK_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SCRIPT = ROOT / "tests" / "children" / "forks.py"
_LONGEST_S = 0.2  # between the first report and the kill
_BOTH_EACH = 4  # of so many experiments, one kills zeusrun as well, and repairs


def run_watchdog_kills(folder: Path, seed: int, kills: int, jobs: int) -> Iterator[Experiment]:
    """Kill so many watchdogs, some at a time; the n-th experiment has the seed ``seed + n``."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(
            lambda n: _kill_once(folder / f"forks-{seed + n}", seed + n), range(kills)
        )


def _kill_once(folder: Path, seed: int) -> Experiment:
    """Run the script, kill at random, and count what runs at the end."""
    folder.mkdir()
    home = Home(folder)
    job = home.write_job(2, 0.0, script=str(_SCRIPT), args=[])
    launcher = home.start("killed", "submit", job)
    both = seed % _BOTH_EACH == 0
    findings: list[Finding] = []
    gone_s = None
    try:
        sidecar = home.runs / "job-1-1" / "metrics.jsonl"
        reported = lambda: sidecar.exists() and b'"reported"' in sidecar.read_bytes()  # noqa: E731
        if wait_until(lambda: reported() or launcher.poll() is not None, 60, 0.01) is None:
            raise SystemExit(f"no rank has begun: {home.complaint('killed')}")
        time.sleep(random.Random(seed).uniform(0, _LONGEST_S))  # noqa: S311 - not a secret
        victims = cast(home, launcher.pid)["watchdog"]
        for process in [*victims, *([psutil.Process(launcher.pid)] if both else [])]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if wait_for(launcher) != (-9 if both else 3) or not victims:
            findings.append(Finding("wrong", f"it ended otherwise: {home.complaint('killed')}"))
        if both and home.run("repair", "repair") != 0:
            findings.append(Finding("wrong", f"repair: {home.complaint('repair')}"))
        gone_s = wait_until(lambda: not home.processes(), GONE_S, TICK_S)
        if gone_s is None:
            left = describe(sorted(home.processes(), key=lambda each: each.pid))
            findings.append(Finding("processes", f"alive {GONE_S:g} s later: {left}"))
    finally:
        launcher.kill()
        launcher.wait()
        while home.processes():
            home.end()
    also = " and zeusrun, then repair" if both else ""
    return Experiment(
        fault=f"SIGKILL to the watchdog of a script that forks{also}",
        label=f"watchdog{also} killed, seed {seed}",
        replay=f"--watchdog-kills 1 --jobs 1 --seed {seed}",
        findings=tuple(findings),
        home=folder,
        facts={"gone_s": gone_s},
    )
