"""A ``zeusrun`` home of its own for every experiment: real commands in it, and what they leave."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parents[1]
WELL = ROOT / "tests" / "children" / "well.py"  # trains nothing, well, and imports no torch
JOB = "job"
TARGET, EPOCHS_TO_TARGET = 0.5, 4
# Until when nothing may be left of what was killed. Tests, which run on any machine, wait longer.
GONE_S = float(os.environ.get("FAULTS_GONE_S", "5"))
PATIENCE_S = 120.0  # with a command that has no reason to hang, on a busy machine
FOUND_W = 312.345

# What is counted of an experiment, in the order of the table.
KINDS = ("lost", "duplicates", "processes", "limits", "files", "unreadable", "wrong")


@dataclass(frozen=True)
class Finding:
    """Something that must not be.

    Attributes:
        kind: One of ``KINDS``.
        text: What, in a sentence.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Experiment:
    """A fault that was tried once.

    Attributes:
        fault: Which row of the table it belongs to.
        label: What was done, for whoever reads a failure.
        replay: The arguments of ``faults.py`` that do it again.
        findings: What it found; none is well.
        home: Its folder, which is kept where something was found.
        facts: What else is worth knowing of it, such as the seconds until all was gone.
    """

    fault: str
    label: str
    replay: str
    findings: tuple[Finding, ...]
    home: Path
    facts: dict[str, Any] = field(default_factory=dict)


class FakeGpus:
    """A machine with two GPUs of its own, seen from beside NVML; see ``tests/gpu/fake_nvml.c``."""

    def __init__(self, library: Path, folder: Path, number: int) -> None:
        """Make it.

        Args:
            library: As built.
            folder: For its state, and a copy of the library, which the loader takes for another.
            number: Goes into the UUIDs, whose locks are the machine's; at most seven digits.
        """
        copy = folder / library.name
        shutil.copy(library, copy)
        self.environment = {
            "LD_LIBRARY_PATH": str(folder),
            "FAKE_NVML_STATE": str(folder / "state"),
        }
        self._nvml = ctypes.CDLL(str(copy))
        self._nvml.fake_nvml_limit_mw.restype = ctypes.c_uint
        self._nvml.fake_nvml_open(str(folder / "state").encode())
        for key, value in (("gpus", 2), ("serial", number), ("clock_ms", -1)):
            self._nvml.fake_nvml_set(key.encode(), ctypes.c_long(value))
        for gpu in range(2):
            self._nvml.fake_nvml_force_limit(gpu, ctypes.c_uint(round(FOUND_W * 1000)))

    def changed_w(self) -> list[float]:
        """Return the limits that are not as they were found."""
        limits_w = [self._nvml.fake_nvml_limit_mw(gpu) / 1000 for gpu in range(2)]
        return [watts for watts in limits_w if watts != FOUND_W]


@dataclass(frozen=True)
class Home:
    """A folder with a home, job files and what commands printed.

    Attributes:
        folder: Of its own; whatever runs in it can be told by it.
        extra: Environment variables beside those that a user has.
    """

    folder: Path
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """What ``ZEUSRUN_HOME`` names."""
        return self.folder / "home"

    @property
    def history_file(self) -> Path:
        """The history of the job."""
        return self.path / "history" / f"{JOB}.json"

    @property
    def runs(self) -> Path:
        """The folder of the job's runs."""
        return self.path / "runs" / JOB

    def write_job(
        self, ranks: int, epoch_s: float, epochs: int = EPOCHS_TO_TARGET, **changes: object
    ) -> Path:
        """Write the job file: it reaches its target after so many epochs."""
        spec = {
            "name": JOB,
            "script": str(WELL),
            "args": ["--gain", str(TARGET / epochs), "--epoch-s", str(epoch_s)],
            "launch": {"nproc_per_node": ranks, "grace_period_s": 2},
            "objective": {"metric": "accuracy", "target": TARGET, "max_epochs": epochs + 1},
            "batch_size": {"default": 32, "candidates": [16, 32, 64]},
            "early_stop": {"cost_factor": None},
            **changes,
        }
        path = self.folder / f"{JOB}.yaml"
        path.write_text(yaml.safe_dump(spec))
        return path

    def start(self, name: str, *arguments: object, **env: str) -> subprocess.Popen[bytes]:
        """Start a command; its streams go to ``<name>.out`` and ``<name>.err``."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ZEUSRUN_", "CUDA_"))}
        own = {"ZEUSRUN_HOME": str(self.path), "TMPDIR": str(self.folder), "NO_COLOR": "1"}
        told = {**kept, **own, **self.extra, **env}
        with self.output(name).open("wb") as out, self.errors(name).open("wb") as err:
            return subprocess.Popen(
                [sys.executable, "-m", "zeusrun", *map(str, arguments)],
                cwd=self.folder,
                env=told,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def run(self, name: str, *arguments: object, **env: str) -> int | None:
        """Run a command to its end and return its exit code; ``None`` if it has hung."""
        return wait_for(self.start(name, *arguments, **env))

    def output(self, name: str) -> Path:
        """Return the file with what a command printed."""
        return self.folder / f"{name}.out"

    def errors(self, name: str) -> Path:
        """Return the file with what a command complained of."""
        return self.folder / f"{name}.err"

    def last_line(self, name: str) -> Any:  # noqa: ANN401 - JSON is any
        """Return the JSON in the last line that a command printed; ``None`` if it is not there."""
        lines = self.output(name).read_text(errors="replace").strip().splitlines()
        try:
            return json.loads(lines[-1]) if lines else None
        except ValueError:
            return None

    def complaint(self, name: str) -> str:
        """Return the end of what a command complained of."""
        return self.errors(name).read_text(errors="replace").strip()[-300:]

    def processes(self) -> set[psutil.Process]:
        """Return the live processes of this home, whoever adopted them; zombies are dead."""
        found = set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                mine = process.environ().get("ZEUSRUN_HOME") == str(self.path)
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.add(process)
        return found

    def end(self) -> None:
        """Kill what is left in this home."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()


def wait_for(process: subprocess.Popen[bytes], patience_s: float = PATIENCE_S) -> int | None:
    """Return the exit code of a process; ``None`` if it had to be killed after so many seconds."""
    try:
        return process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def wait_until(condition: Callable[[], bool], patience_s: float, each_s: float) -> float | None:
    """Return the seconds until a condition held; ``None`` if it did not in so many seconds."""
    begun_t = time.monotonic()
    while not condition():
        if time.monotonic() - begun_t > patience_s:
            return None
        time.sleep(each_s)
    return time.monotonic() - begun_t


def build_library(folder: Path, source: Path, name: str) -> Path:
    """Build a library of our own with gcc."""
    library = folder / name
    command = ["gcc", "-shared", "-fPIC", "-pthread", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


def describe(processes: Sequence[psutil.Process]) -> str:
    """Return the names of processes and what they were told, as far as they live."""
    words = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            words.append(f"{process.name()} ({process.pid}): {' '.join(process.cmdline())[:120]}")
    return "; ".join(words) or "gone since"
