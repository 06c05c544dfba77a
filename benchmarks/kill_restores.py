"""How soon power limits are back after SIGKILL, at random moments while limits are being tried.

Target: within 2 s, every time. ``python benchmarks/kill_restores.py [--times 50] [--jobs 6]``
Needs gcc: the GPU is the fake of ``tests/gpu/fake_nvml.c``, everything else is real.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import yaml
from timing import describe_machine, show

from zeusrun.launcher.processes.descendants import end_processes, processes_of_run

ROOT = Path(__file__).resolve().parents[1]
FOUND_W = 312.345
LONGEST_S = 25.0  # over two probes: the moment is drawn from so much of profiling
PATIENCE_S = 30.0


class Machine:
    """A fake GPU of its own, and a submit that tries power limits on it."""

    def __init__(self, library: Path, folder: Path, number: int) -> None:
        copy = folder / "libnvidia-ml.so.1"  # a library of its own to the loader
        shutil.copy(library, copy)
        self._nvml = ctypes.CDLL(str(copy))
        self._nvml.fake_nvml_limit_mw.restype = ctypes.c_uint
        self._nvml.fake_nvml_open(str(folder / "state").encode())
        for key, value in (("gpus", 1), ("serial", number), ("clock_ms", -1), ("work", 1)):
            self._nvml.fake_nvml_set(key.encode(), ctypes.c_long(value))
        self._nvml.fake_nvml_force_limit(0, ctypes.c_uint(round(FOUND_W * 1000)))
        self.home = folder / "home"
        spec = {
            "name": "killed",
            "script": str(ROOT / "tests" / "children" / "trains_on_gpu.py"),
            "args": ["--steps", "100000"],
            "launch": {"nproc_per_node": 1, "grace_period_s": 2},
            "objective": {"metric": "accuracy", "target": 0.5, "max_epochs": 5},
            "batch_size": {"default": 32, "candidates": [16, 32, 64]},
        }
        job = folder / "killed.yaml"
        job.write_text(yaml.safe_dump(spec))
        self.launcher = subprocess.Popen(
            [sys.executable, "-m", "zeusrun", "submit", str(job)],
            env={
                **os.environ,
                "ZEUSRUN_HOME": str(self.home),
                "LD_LIBRARY_PATH": str(folder),
                "FAKE_NVML_STATE": str(folder / "state"),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def limit_w(self) -> float:
        """Return the limit in force, from beside NVML."""
        return self._nvml.fake_nvml_limit_mw(0) / 1000

    def torchrun(self) -> psutil.Process:
        """Return the launcher's torchrun."""
        for child in psutil.Process(self.launcher.pid).children():
            if "torch.distributed.run" in " ".join(child.cmdline()):
                return child
        raise RuntimeError("there is no torchrun")

    def close(self) -> None:
        """End whatever is left of the submit."""
        self.launcher.kill()
        self.launcher.wait()
        for directory in (self.home / "runs").glob("*/*"):
            end_processes(processes_of_run(str(directory)), at_once=True)


def wait_until(condition, patience_s: float) -> float | None:  # noqa: ANN001
    """Return the seconds until a condition held; ``None`` if it never did."""
    begun = time.monotonic()
    while time.monotonic() - begun < patience_s:
        if condition():
            return time.monotonic() - begun
        time.sleep(0.005)
    return None


def kill_once(library: Path, victim: str, number: int, after_s: float) -> float | None:
    """Return the seconds from the kill to the limit found; ``None`` if it did not come back."""
    with tempfile.TemporaryDirectory() as name:
        machine = Machine(library, Path(name), number)
        try:
            if wait_until(lambda: machine.limit_w() != FOUND_W, 120.0) is None:
                raise RuntimeError("no limit was ever tried")
            time.sleep(after_s)
            torchrun = machine.torchrun()
            if victim in ("launcher", "both"):
                os.kill(machine.launcher.pid, signal.SIGKILL)
            if victim in ("torchrun", "both"):
                torchrun.kill()
            return wait_until(lambda: machine.limit_w() == FOUND_W, PATIENCE_S)
        finally:
            machine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=6, help="machines at a time")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)  # noqa: S311 - moments, not secrets
    victims = ("launcher", "torchrun", "both")
    plan = [
        (victim, number, rng.uniform(0, LONGEST_S))
        for number, victim in enumerate(victims * arguments.times)
    ]
    figures: dict[str, list[float]] = {victim: [] for victim in victims}
    lost = dict.fromkeys(victims, 0)
    with tempfile.TemporaryDirectory() as name:
        library = Path(name) / "libnvidia-ml.so.1"
        source = ROOT / "tests" / "gpu" / "fake_nvml.c"
        subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", "-o", library, source], check=True)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            tasks = [
                (
                    victim,
                    pool.submit(
                        kill_once, library, victim, os.getpid() % 10**4 * 10**3 + number, after_s
                    ),
                )
                for victim, number, after_s in plan
            ]
            for victim, task in tasks:
                seconds = task.result()
                if seconds is None:
                    lost[victim] += 1
                else:
                    figures[victim].append(seconds)
    print(describe_machine())
    print(f"{arguments.times} kills each, interleaved, {arguments.jobs} at a time")
    show(figures, "s until the limit found is back")
    late = {victim: sum(s > 2.0 for s in seconds) for victim, seconds in figures.items()}
    print(f"later than 2 s: {late}; never: {lost}")


if __name__ == "__main__":
    main()
