"""What tests are made of: trials, job files and specs, and a ``zeusrun`` with a home of its own."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from tests.forks import TIMEOUT_S, Forked, zeusrun_forks
from zeusrun.history.base import Conflict
from zeusrun.jobfile.spec import JobSpec, load_spec
from zeusrun.trial import CurvePoint, EnergySource, Outcome, Stage, Trial, TrialStatus

ROOT = Path(__file__).resolve().parents[1]
CHILDREN = ROOT / "tests" / "children"
FAKE_TORCHRUN = ROOT / "tests" / "fake_torchrun"
PYTHON = shlex.quote(sys.executable)
"""This Python, for a command of a shell: its path may contain spaces."""
AS_SSH = """env HOST={host} sh -c 'eval "exec $*"' sh"""
"""A fan-out that runs the words here, as ssh does there: it joins them for a shell."""
_CALM = f"""
import runpy, sys
sys.path.append({str(ROOT)!r})
import tests.calm
sys.path.pop()
runpy.run_module("zeusrun", run_name="__main__", alter_sys=True)
"""

REACHED = Outcome(
    status=TrialStatus.REACHED,
    reason="val_accuracy 0.96 reached 0.95",
    finished_at="2025-06-01T12:00:09Z",
    time_s=8.5,
    energy_j=420.0,
    energy_source=EnergySource.ESTIMATED,
    max_power_w=65.0,
    cost_j=486.25,
    epochs=3,
    steps=84,
    whole_steps=84,
    best_metric=0.96,
    curve=(CurvePoint(1, 2.5, 130.0, 0.8), CurvePoint(2, 5.5, None, None)),
)

DONE = Outcome(
    TrialStatus.REACHED,
    "accuracy 0.6 in epoch 2",
    "2025-06-01T13:00:00.000+00:00",
    time_s=4.0,
    energy_j=40.0,
    energy_source=EnergySource.ESTIMATED,
    max_power_w=10.0 * len(os.sched_getaffinity(0)),  # as of this machine
    cost_j=100.0,
    epochs=2,
    best_metric=0.6,
)
PREEMPTED = replace(REACHED, status=TrialStatus.PREEMPTED, reason="SIGTERM")


def build_trial(recurrence: int = 1, attempt: int = 1, job: str = "job", **values) -> Trial:
    """Build a dispatched trial; its id is made of its numbers unless ``values`` gives one."""
    trial = f"{job}-{recurrence}-{attempt}"
    defaults = {
        "trial": trial,
        "job": job,
        "recurrence": recurrence,
        "attempt": attempt,
        "global_batch_size": 32,
        "world_size": 2,
        "started_at": "2025-06-01T12:00:00.000+00:00",
        "metric": "accuracy",
        "run_dir": f"runs/{job}/{trial}",
        "stage": Stage.EXPLORE,
        "why": "32 is the default and comes first",
        "mode": "max",
        "target": 0.5,
        "max_epochs": 5,
        "eta_knob": 0.5,
        "default_batch_size": 32,
        "uuid": uuid_of(values.get("trial", trial)),
    }
    return Trial(**{**defaults, **values})


def shebang(options: str = "") -> str:
    """Return the first lines of a Python program, for a path with spaces, too, as pip does."""
    if len(sys.executable) < 100 and " " not in sys.executable:
        return f"#!{sys.executable} {options}".rstrip() + "\n"
    return f"#!/bin/sh\n'''exec' {PYTHON} {options} \"$0\" \"$@\"\n' '''\n"


def uuid_of(trial: str) -> str:
    """Return the uuid that ``build_trial`` gives a trial with this id."""
    return hashlib.md5(trial.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()


def begin(history, choose, last: int | None = None, job: str = "job") -> Trial:
    """Store a trial as a submit does: choose from a snapshot, and again after a conflict.

    Args:
        history: Where to.
        choose: The trial, or what makes one of the list of the newest trials.
        last: How many of them it gets.
        job: Of which job; that of the trial if one is given.
    """
    if isinstance(choose, Trial):
        trial, job = choose, choose.job
        choose = lambda _: trial  # noqa: E731
    while True:
        trials, version, _ = history.snapshot(job, last)
        with suppress(Conflict):
            return history.begin(choose(list(trials)), after=version)


def write_job(folder: Path, script: str | None = "well.py", name: str = "job", **changes) -> Path:
    """Write the job file ``<folder>/<name>.yaml``.

    Args:
        folder: Where to.
        script: The name of a child script, or what the job file is to say; ``None`` for a job with
            a ``module``.
        name: Of the job.
        changes: Sections are merged key by key (``objective={"target": 1.0}``); ``None`` takes a
            key out.
    """
    if script is not None and (CHILDREN / script).is_file():
        script = str(CHILDREN / script)
    spec = {
        "name": name,
        "script": script,
        "launch": {"nproc_per_node": 1, "grace_period_s": 2},
        "objective": {"metric": "accuracy", "target": 0.5, "max_epochs": 5},
        "batch_size": {"default": 32, "candidates": [16, 32, 64]},
        "env": {"GLOBAL_BATCH_SIZE": "${batch_size}"},  # else each run warns that nothing takes it
    }
    for key, value in changes.items():
        merge = isinstance(value, dict) and isinstance(spec.get(key), dict)
        spec[key] = {**spec[key], **value} if merge else value
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({key: spec[key] for key in spec if spec[key] is not None}))
    return path


def load_job(folder: Path, script: str | None = "well.py", **changes) -> JobSpec:
    """Write a job file as ``write_job`` does, and load it."""
    return load_spec(write_job(folder, script, **changes))


def with_fake_torchrun(environment: dict[str, str]) -> dict[str, str]:
    """Return an environment in which zeusrun launches the fake torchrun."""
    rest = environment.get("PYTHONPATH")
    path = str(FAKE_TORCHRUN) if not rest else f"{FAKE_TORCHRUN}:{rest}"
    return {**environment, "PYTHONPATH": path}


def temporary_folder(tmp_path: Path) -> Path:
    """Return a ``TMPDIR`` that goes with pytest's own: agents that are killed leave folders there.

    One for all tests of a worker, since names of sockets must be short.
    """
    folder = tmp_path.parent / "tmp"
    folder.mkdir(exist_ok=True)
    return folder


def _changes_python(env: dict[str, str]) -> bool:
    """Whether variables change Python itself; a fork heeds two that seem to."""
    names = env.keys() - {"PYTHONPATH", "LD_LIBRARY_PATH"}
    return any(name.startswith(("PYTHON", "LC_", "LANG", "LD_")) for name in names)


@dataclass
class Zeusrun:
    """Runs the command as a user does.

    Attributes:
        home: Its ``ZEUSRUN_HOME``.
        folder: Where it is run, and job files are.
        real_torchrun: Launch the installed torchrun, and not its fake.
        started: The commands that ``start`` has started.
        variables: More of its environment.
    """

    home: Path
    folder: Path
    real_torchrun: bool = False
    started: list[subprocess.Popen[str] | Forked] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ZEUSRUN_", "CUDA_"))}
        kept |= {"ZEUSRUN_HOME": str(self.home), "COLUMNS": "100", "NO_COLOR": "1"}
        kept |= self.variables
        kept["TMPDIR"] = str(temporary_folder(self.folder))
        return kept if self.real_torchrun else with_fake_torchrun(kept)

    def argv(self, *arguments):
        return [sys.executable, "-m", "zeusrun", *map(str, arguments)]

    def __call__(self, *arguments, **env):
        """Run the command to its end: as a fork, unless ``env`` changes Python itself."""
        argv, environment = self.argv(*arguments), {**self.environment, **env}
        if _changes_python(env):
            return subprocess.run(
                argv,
                cwd=self.folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        return zeusrun_forks().run(argv[2:], environment, self.folder)

    def start(self, *arguments, **env):
        """Start the command, as a fork or not; the fixture kills it at the end of the test."""
        argv, environment = self.argv(*arguments), {**self.environment, **env}
        if _changes_python(env):
            child = subprocess.Popen(
                [sys.executable, "-c", _CALM, *argv[3:]],
                cwd=self.folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        else:
            child = zeusrun_forks().open(argv[2:], environment, self.folder)
        self.started.append(child)
        return child

    def printing_to(self, stream, env):
        """Return the options of a child whose output, errors included, goes into a file."""
        quiet = {"stdin": subprocess.DEVNULL, "stdout": stream, "stderr": subprocess.STDOUT}
        return {"cwd": self.folder, "env": {**self.environment, **env}, **quiet}

    def run_dir(self, trial="job-1-1"):
        return self.home / "runs" / trial.rsplit("-", 2)[0] / trial

    def job(self, script="well.py", name="job", **changes):
        """Write a job file into its folder; see ``write_job``."""
        return write_job(self.folder, script, name, **changes)

    def submit(self, job, *arguments):
        """Submit and return ``(exit code, result object, what people see)``."""
        done = self("submit", job, "--json", *arguments)
        last = done.stdout.strip().splitlines()[-1:] or ["null"]
        return done.returncode, json.loads(last[0]), done.stderr

    def history(self, *arguments):
        done = self("history", "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
