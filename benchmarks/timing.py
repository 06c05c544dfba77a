"""Fair timings: interleaved runs, medians and spread, and the machine they were taken on."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Name = TypeVar("Name")
Figure = TypeVar("Figure")


def describe_machine() -> str:
    """Return one line on what ran this."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    model = names[0] if names else platform.machine()
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {model}, Linux, Python {platform.python_version()}"


def run_seconds(
    command: Sequence[str], env: Mapping[str, str] | None = None, code: int = 0
) -> float:
    """Run a command and return its wall-clock seconds.

    Python may write compiled modules, as on a user's machine: where PYTHONDONTWRITEBYTECODE is set,
    a clone compiles all of zeusrun in every process.

    Raises:
        SystemExit: If it does not end with the exit code expected.
    """
    env = {**(os.environ if env is None else env), "PYTHONDONTWRITEBYTECODE": ""}
    started = time.perf_counter()
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode != code:
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return seconds


def interleave(runs: Mapping[Name, Callable[[], Figure]], repeats: int) -> dict[Name, list[Figure]]:
    """Return the figures of each, taken in turn after one uncounted round: A B A B …."""
    figures: dict[Name, list[Figure]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            figure = run()
            if repeat:
                figures[name].append(figure)
    return figures


def show(figures: Mapping[str, Sequence[float]], unit: str) -> None:
    """Print minimum, median and maximum of each."""
    width = max(map(len, figures))
    print(f"{'':{width}}  {'median':>9}  {'min':>9}  {'max':>9}  {unit}")
    for name, values in figures.items():
        median = statistics.median(values)
        print(f"{name:{width}}  {median:9.3f}  {min(values):9.3f}  {max(values):9.3f}")
