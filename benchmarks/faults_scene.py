"""Who is to be killed and when, and a submit in which that can be told: its phases and its cast."""

from __future__ import annotations

import contextlib
import random
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
from faults_audit import write_earlier
from faults_home import EPOCHS_TO_TARGET, FakeGpus, Home

from zeusrun.launcher.rundir.layout import RunPaths

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from zeusrun.trial import Trial

RANKS, EPOCH_S, HELD_W = 2, 0.25, 200.0
LONG_EPOCHS = 60  # 15 s: ranks that were left to themselves are still there after 5 s
EARLIER = 2  # trials of each home's past
PHASES = ("before dispatch", "starting", "training", "ending", "after")
_SINGLE = ("launcher", "agent", "rank 0", "rank 1", "watchdog", "guard")
_PAIRS = (
    ("launcher", "agent"),
    ("launcher", "watchdog"),
    ("launcher", "guard"),
    ("launcher", "rank 0"),
    ("agent", "rank 1"),
    ("agent", "watchdog"),
    ("rank 0", "rank 1"),
)
_VICTIMS = tuple((name,) for name in _SINGLE) + _PAIRS
_WEIGHTS = (6, 4, 4, 4, 2, 2, *(1 for _ in _PAIRS))


@dataclass(frozen=True)
class Plan:
    """Who is to die, and when.

    Attributes:
        victims: Their parts; see ``cast``.
        aim: The phase in which the moment is to fall.
        share: The moment, in lengths of that phase.
        holds_limit: Whether the job holds its GPUs to a limit.
        epochs: How long it trains.
    """

    victims: tuple[str, ...]
    aim: str
    share: float
    holds_limit: bool
    epochs: int


def draw(seed: int) -> Plan:
    """Return the plan that belongs to a seed."""
    rng = random.Random(seed)  # noqa: S311 - moments, not secrets
    (victims,) = rng.choices(_VICTIMS, _WEIGHTS)
    (aim,) = rng.choices(PHASES[:4], (1, 3, 4, 2))
    if aim == PHASES[0] and victims != ("launcher",):
        aim = PHASES[1]  # there is nobody else before
    share, coin = rng.uniform(0, 1.1), rng.random()
    # Where the training has to end by itself, it is to be short.
    ends = aim == PHASES[3] or victims == ("guard",)
    epochs = EPOCHS_TO_TARGET if ends else LONG_EPOCHS
    return Plan(victims, aim, share, coin < 0.5 or "guard" in victims, epochs)


def measure_phases(folder: Path, library: Path, jobs: int) -> dict[str, float]:
    """Return how many seconds each phase lasts when so many submits run at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        many = list(pool.map(lambda n: _phases_once(folder / f"calm-{n}", library, n), range(jobs)))
    return {phase: sum(each[phase] for each in many) / len(many) for phase in PHASES}


def _phases_once(folder: Path, library: Path, number: int) -> dict[str, float]:
    calm = Plan((), PHASES[4], 1.0, holds_limit=True, epochs=EPOCHS_TO_TARGET)
    scene = open_scene(folder, library, number, calm)
    spent = dict.fromkeys(PHASES, 0.0)
    since_t = time.monotonic()
    while (phase := read_phase(scene)) is not None:
        now_t = time.monotonic()
        spent[phase] += now_t - since_t
        since_t = now_t
        time.sleep(0.005)
    if scene.launcher.returncode != 0:
        raise SystemExit(
            f"an undisturbed submit does not end well: {scene.home.complaint('killed')}"
        )
    return spent


@dataclass(frozen=True)
class Scene:
    """A submit that somebody of is to be killed.

    Attributes:
        plan: Who, and when.
        home: Where it runs.
        earlier: The trials of its past.
        gpus: Its GPUs.
        launcher: Its first process.
    """

    plan: Plan
    home: Home
    earlier: list[Trial]
    gpus: FakeGpus
    launcher: subprocess.Popen[bytes]


def open_scene(folder: Path, library: Path, number: int, plan: Plan) -> Scene:
    """Start a submit in a folder that is made for it, on GPUs whose UUIDs hold the number."""
    folder.mkdir()
    gpus = FakeGpus(library, folder, number % 10**7)
    home = Home(folder, gpus.environment)
    earlier = write_earlier(home, EARLIER)
    limit = {"mode": "fixed", "watts": HELD_W} if plan.holds_limit else {"mode": "optimize"}
    job = home.write_job(RANKS, EPOCH_S, plan.epochs, power_limit=limit)
    return Scene(plan, home, earlier, gpus, home.start("killed", "submit", job, "--json"))


def read_phase(scene: Scene) -> str | None:
    """Return what a submit is about now; ``None`` once its launcher is gone."""
    if scene.launcher.poll() is not None:
        return None
    known = {trial.trial for trial in scene.earlier}
    try:
        running = [path for path in scene.home.runs.iterdir() if path.name not in known]
        stored = scene.home.history_file.read_bytes()
    except FileNotFoundError:
        return PHASES[0]
    if not running or f'"{running[0].name}"'.encode() not in stored:
        return PHASES[0]
    if b'"DISPATCHED"' not in stored:
        return PHASES[4]
    sidecar = RunPaths(running[0]).sidecar
    events = sidecar.read_bytes() if sidecar.exists() else b""
    begun = PHASES[2] if b'"started"' in events else PHASES[1]
    return PHASES[3] if b'"ended"' in events else begun


def cast(home: Home, launcher_pid: int) -> dict[str, list[psutil.Process]]:
    """Return the processes of a submit by the part they play; ``other`` for those without one."""
    everybody = home.processes()
    with contextlib.suppress(psutil.Error):
        everybody.update(psutil.Process(launcher_pid).children(recursive=True))
    parts = defaultdict(list)
    for process in everybody:
        with contextlib.suppress(psutil.Error, OSError):
            parts[_part(process, launcher_pid)].append(process)
    return parts


def _part(process: psutil.Process, launcher_pid: int) -> str:
    words, rank = " ".join(process.cmdline()), process.environ().get("RANK")
    if process.pid == launcher_pid:
        return "launcher"
    if rank is not None:
        return f"rank {rank}"
    for part, sign in (
        ("watchdog", "watchdog.py"),  # torchrun's command follows in its own
        ("agent", "processes.agent"),
        ("guard", "guard"),
    ):
        if sign in words:
            return part
    return "other"
