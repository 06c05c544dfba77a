"""What ``explain`` says of the next run, where trainings miss their target by bad luck.

    python benchmarks/misses.py [--seeds 60]

A share of the runs of a simulated job misses the target, whatever the batch size; the others need
about 15 of 40 epochs. Before each run of the best known batch size, policy ``auto`` states the risk
that it fails, its range, and the epochs to the target. The table compares them with the run.
Targets: a risk within 5 points of the share that failed, 85 to 95 % of the runs within the range,
epochs within 10 %, and no range above what a run can cost.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
from timing import describe_machine

from zeusrun.bandit.registry import create_policy, explain_next
from zeusrun.bandit.reinterpret import read_history
from zeusrun.simulate.engine import LearningCurve, Rate, SimulatedJob
from zeusrun.simulate.replay import ask_about, replay
from zeusrun.trial import Stage, TrialStatus

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4)
FACTORS, EPOCHS, EPOCHS_SD, MAX_EPOCHS, CURVES = {32: 1.15, 64: 1.0, 128: 1.3}, 15, 0.14, 40, 200
KNOWN, RUNS = 4, 24  # recurrences before the first statement, and in all
ETA_KNOB, COST_FACTOR = 0.5, 2.0


def make_job(share: float, rng: np.random.Generator) -> SimulatedJob:
    """Make up a job of which a share of the runs misses the target."""

    def curve(factor: float) -> LearningCurve:
        epochs = max(1, round(EPOCHS * factor * math.exp(EPOCHS_SD * rng.standard_normal())))
        pace = tuple({math.ceil(epochs * k / 10): k / 10 for k in range(1, 11)}.items())
        missed = rng.random() < share
        return LearningCurve(None, pace[:7]) if missed else LearningCurve(epochs, pace)

    return SimulatedJob(
        name="misses",
        default=64,
        mode="max",
        target=1.0,
        max_epochs=MAX_EPOCHS,
        max_power_w=300.0,
        rates={arm: {300.0: Rate(100.0, 200.0)} for arm in FACTORS},
        eras=[(1, {arm: [curve(each) for _ in range(CURVES)] for arm, each in FACTORS.items()})],
    )


def play(share: float, seed: int) -> list[tuple[float, ...]]:
    """Return what was said before each run of the best known batch size, and what came."""
    rng = np.random.default_rng([seed, round(100 * share)])
    job, policy = make_job(share, rng), create_policy("auto")
    asked = ask_about(job, ETA_KNOB, COST_FACTOR)
    trials = [each.trial for each in replay(job, policy, asked, RUNS, [seed])]
    rows = []
    for n in range(KNOWN + 1, RUNS + 1):
        trial = next(each for each in trials if each.recurrence == n)
        before = [each for each in trials if each.recurrence < n]
        problem, runs = read_history(replace(asked, recurrence=n), before)
        beliefs = explain_next(policy, problem, runs, np.random.default_rng(0))
        own = next(b for b in beliefs if b.global_batch_size == trial.global_batch_size)
        if trial.stage is not Stage.EXPLOIT or own.cost_range_j is None or not own.reached:
            continue
        low_j, high_j = own.cost_range_j
        failed = trial.status is not TrialStatus.REACHED
        within = 0.999 * low_j <= (trial.cost_j or 0.0) <= 1.001 * high_j
        most_j = 1.001 * MAX_EPOCHS * (own.epoch_cost_j or 0.0)
        reached = math.nan if failed else float(trial.epochs or 0)
        rows.append(
            (own.failure_chance or 0.0, failed, within, own.epochs or 0.0, reached, high_j > most_j)
        )
    return rows


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=60)
    seeds = parser.parse_args().seeds
    print(f"{describe_machine()}; {seeds} jobs a row, {RUNS} recurrences\n")
    print("| misses | risk said | failed | in the range | epochs said | took | impossible ranges |")
    print("|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for share in SHARES:
            found = pool.map(partial(play, share), range(seeds), chunksize=4)
            risk, failed, within, said, took, above = np.array([*itertools.chain(*found)]).T
            shares = " | ".join(f"{100 * each.mean():.1f} %" for each in (risk, failed, within))
            epochs = f"{said.mean():.1f} | {np.nanmean(took):.1f}"
            print(f"| {share:.0%} | {shares} | {epochs} | {100 * above.mean():.0f} % |")


if __name__ == "__main__":
    main()
