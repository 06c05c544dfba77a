"""What tuned loader workers gain, and what looking for them costs: ``loader: {workers: tune}``.

Five trainings, each with the number of workers of its script, with a tuned one, and with every
fixed number up to the cores: (a) decodes JPEG files, (b) waits 4 ms for each sample, as for a
remote store, (c) has its data in memory, (d) has epochs of 64 samples, (e) has two ranks. The runs
alternate.
``python benchmarks/loaders.py [--rounds 5] [--cases abcde]``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from itertools import pairwise
from pathlib import Path

import yaml
from timing import describe_machine, interleave

SCRIPT = Path(__file__).resolve().parent / "scripts" / "loads.py"
CASES = {
    "a": ("JPEG files", 1, 8, "--data pictures --samples 600"),
    "b": ("4 ms a sample", 1, 8, "--read-ms 4 --samples 400"),
    "c": ("in memory", 2, 8, "--samples 4000 --width 6000"),
    "d": ("64 samples", 2, 60, "--read-ms 1 --samples 64"),
    "e": ("two ranks", 1, 8, "--data pictures --samples 600"),
}
"""By letter: a name, the workers of the script, epochs, and its other arguments."""


def submit(case: str, workers: str | int, home: str) -> dict:
    """Run a training; return its trial. ``script``: with as many workers as its script has."""
    _, own, epochs, args = CASES[case]
    ranks = 2 if case == "e" else 1
    # A fixed number is that of the script, so that nothing of the part costs time.
    number = workers if isinstance(workers, int) else own
    job = {
        "name": f"loads-{case}-{workers}",
        "script": str(SCRIPT),
        "args": [*args.split(), "--workers", str(number), "--batch-size", "${local_batch_size}"],
        "launch": {"nproc_per_node": ranks},
        "batch_size": {"default": 16 * ranks, "candidates": [16 * ranks]},
        "objective": {"metric": "loss", "mode": "min", "target": 0.001, "max_epochs": epochs},
        "policy": {"name": "fixed"},
        "attempts": 1,
    }
    if workers == "tune":
        job["loader"] = {"workers": "tune"}
    path = Path(home, f"{case}-{workers}.yaml")
    path.write_text(yaml.safe_dump(job))
    # Each run in a home of its own: nothing is remembered.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "zeusrun", "submit", str(path), "--json", "--quiet"],
            env={**os.environ, "ZEUSRUN_HOME": folder},
            check=False,
            capture_output=True,
            text=True,
        )
    if done.returncode != 4:  # the target is out of reach
        raise SystemExit(f"{path} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])["trials"][-1]


def epochs_of(trial: dict) -> list[float]:
    """Return the seconds of each epoch."""
    times = [0.0, *(point[1] for point in trial["curve"])]
    return [until - since for since, until in pairwise(times)]


def describe(values: list[float], form: str = ".2f") -> str:
    """Return median, minimum and maximum."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):{form}} ({low:{form}} to {high:{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="abcde")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(describe_machine())
    with tempfile.TemporaryDirectory() as home:
        for case in options.cases:
            name, own, *_ = CASES[case]
            most = cores // 2 if case == "e" else cores
            kinds = ["script", "tune", *(n for n in range(1, most + 1) if n != own)]
            runs = {kind: partial(submit, case, kind, home) for kind in kinds}
            found = interleave(runs, options.rounds)
            whole = {kind: [t["time_s"] for t in trials] for kind, trials in found.items()}
            print(f"({case}) {name}, {own} in the script")
            for kind, trials in found.items():
                waits = [t["data_wait_s"] / t["time_s"] for t in trials]
                print(
                    f"  {kind!s:7} all epochs {describe(whole[kind])} s, "
                    f"epoch 4 {describe([epochs_of(t)[3] for t in trials])} s, "
                    f"waits {describe(waits, '.0%')}"
                )
            tuned = [a / b for a, b in zip(whole["tune"], whole["script"], strict=True)]
            best = min((k for k in kinds if k != "tune"), key=lambda k: statistics.median(whole[k]))
            last = [statistics.mean(epochs_of(t)[4:]) for t in found["tune"]]
            fixed = [statistics.mean(epochs_of(t)[4:]) for t in found[best]]
            lose = [a / b for a, b in zip(last, fixed, strict=True)]
            print(f"  tuned / script, all epochs: {describe(tuned, '.3f')}")
            print(f"  tuned / best ({best}), from epoch 5 on: {describe(lose, '.3f')}")
            curves = [
                [point[3] for point in t["curve"]] for t in (*found["tune"], *found["script"])
            ]
            print(f"  learning curves equal: {all(each == curves[0] for each in curves)}")
            numbers = [" ".join(str(c[1]) for c in t["workers"]) for t in found["tune"]]
            print(f"  tuned numbers: {'; '.join(numbers)}", flush=True)


if __name__ == "__main__":
    main()
