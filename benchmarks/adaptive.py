"""What a batch size that adapts is worth, and what adapting itself costs: ``examples/adaptive``.

Each training runs with every fixed batch size from the smallest to the largest, and with one that
adapts from the smallest on, for each seed, in rotating order. A batch size has the same learning
rate in all of them. Then the time of an epoch is measured (``adapt_cost.py``).
``python benchmarks/adaptive.py [--seeds 5] [--jobs adaptive] [--policies noise-scale]``
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from timing import describe_machine

ROOT = Path(__file__).resolve().parents[1]
DATA = {"adaptive": ("digits", 0.9), "adaptive_cifar10": ("cifar10", 0.8)}  # and an easier target
COMMON = ("policy.name=fixed", "attempts=1", "early_stop.cost_factor=null")


def find_sizes(job: str) -> list[int]:
    """Return the fixed batch sizes: a job's smallest, its doublings, and its largest."""
    text = (ROOT / "jobs" / f"{job}.yaml").read_text()
    low, *_, high = yaml.safe_load(text)["batch_size"]["candidates"]
    return [low << n for n in range((high // low).bit_length())]


def submit(job: str, variant: str, seed: int, rule: str, home: str) -> dict:
    """Run one training; return its trial."""
    path, sizes = ROOT / "jobs" / f"{job}.yaml", find_sizes(job)
    chosen = int(variant) if variant.isdigit() else sizes[0]
    keys = [*COMMON, f"name={job}-{variant}", f"args=[--data, {DATA[job][0]}, --seed, {seed}]"]
    keys += [f"learning_rate.scale={rule}", f"adapt.learning_rate={rule}"]
    keys.append(f"batch_size.candidates={sizes}")
    if variant.isdigit():
        keys.append("adapt=null")
    else:
        keys.append(f"adapt.batch_size.policy={variant}")
    options = [part for key in keys for part in ("--set", key)]
    command = [sys.executable, "-m", "zeusrun", "submit", str(path), "--batch-size", str(chosen)]
    done = subprocess.run(
        [*command, *options, "--json", "--quiet"],
        env={**os.environ, "ZEUSRUN_HOME": home},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode not in {0, 4}:  # 4: the target was missed
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])["trials"][-1]


def describe(values: list[float | None]) -> str:
    """Return the median and the range; a run without the value counts as the largest."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return "-"
    ranked = [*known, *[float("inf")] * (len(values) - len(known))]
    median, low, high = (
        "missed" if math.isinf(value) else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
        for value in (statistics.median(ranked), ranked[0], ranked[-1])
    )
    return f"{median} ({low} to {high})"


def until(trial: dict, target: float) -> tuple[float | None, ...]:
    """Return epochs, optimizer steps, seconds and joules until a target was first reached."""
    for epoch, time_s, energy_j, value in trial["curve"]:
        if value is not None and value >= target:
            steps = trial["steps"] if epoch == trial["epochs"] else None
            return epoch, steps, time_s, energy_j
    return (None,) * 4


def compare(job: str, variants: list[str], seeds: int, rule: str, home: str) -> None:
    """Run each variant with each seed, and print a table for each target."""
    trials: dict[str, list[dict]] = {variant: [] for variant in variants}
    for seed in range(1, seeds + 1):
        turn = seed % len(variants)
        for variant in variants[turn:] + variants[:turn]:
            trials[variant].append(submit(job, variant, seed, rule, home))
    target = next(iter(trials.values()))[0]["target"]
    for goal in (DATA[job][1], target):
        print(f"\n{job}: accuracy {goal:g}, rate {rule}, {seeds} seeds: median (min to max)\n")
        print("| batch size | reached | epochs | steps | seconds | joules |")
        print("|---|---|---|---|---|---|")
        for variant, runs in trials.items():
            found = [until(trial, goal) for trial in runs]
            reached = sum(each[0] is not None for each in found)
            columns = [list(column) for column in zip(*found, strict=True)]
            if goal != target:
                columns[1] = [None]  # the record has the steps of the whole run
            first = runs[0]["global_batch_size"]
            cells = " | ".join(map(describe, columns))
            name = variant if variant.isdigit() else f"{first}, {variant}"
            print(f"| {name} | {reached}/{len(runs)} | {cells} |")
    for variant, runs in trials.items():
        for seed, trial in enumerate(runs, 1):
            if trial["batch_sizes"]:
                path = " → ".join(f"{size} ({epoch})" for epoch, size in trial["batch_sizes"])
                print(f"{variant}, seed {seed}: {path}")
            for warning in trial["warnings"]:
                print(f"{variant}, seed {seed}: {warning}")
    sources = {trial["energy_source"] for runs in trials.values() for trial in runs}
    print(f"energy: {', '.join(map(str, sources))}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", nargs="*", choices=list(DATA), default=list(DATA))
    parser.add_argument("--policies", nargs="+", default=["noise-scale"])
    parser.add_argument("--rule", choices=["sqrt", "linear"], default="sqrt", help="of the rate")
    parser.add_argument("--rounds", type=int, default=15, help="of epochs; 0: no cost of adapting")
    options = parser.parse_args()
    print(describe_machine(), flush=True)
    with tempfile.TemporaryDirectory() as home:
        for job in options.jobs:
            variants = [*map(str, find_sizes(job)), *options.policies]
            compare(job, variants, options.seeds, options.rule, home)
        if options.rounds:
            cost = Path(__file__).with_name("adapt_cost.py")
            command = [sys.executable, str(cost), "--rounds", str(options.rounds)]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
