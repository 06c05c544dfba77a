"""How often the range of nine runs of ten holds, and how wide it is, by what is known of the noise.

    python benchmarks/range.py [--seeds 150]

Epochs and speed of a simulated job scatter by log-normal noise. After some runs since the start or
the last change, policy ``auto`` states the range of the next run of the incumbent. The tables show
which share of such runs lies within it, and its median width relative to that of someone who has as
many runs of the incumbent and knows the noise of speed and, in brackets, that of epochs, too.
Targets: at least 85 %, and at most 1.3.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import chain, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from timing import describe_machine

from zeusrun.bandit.auto.beliefs import assess
from zeusrun.bandit.auto.words import belief_of
from zeusrun.bandit.problem import student
from zeusrun.bandit.registry import create_policy
from zeusrun.bandit.reinterpret import read_history
from zeusrun.simulate.engine import LearningCurve, Rate, SimulatedJob, watts
from zeusrun.simulate.replay import ask_about, replay
from zeusrun.trial import Hardware

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.auto.beliefs import Assessment
    from zeusrun.bandit.problem import Observation

SCENARIOS = ALONE, SLOWED, EXPLORING, MOVED = (
    "the default alone",
    "the default alone, 1.5 times slower from run 21 on",
    "exploring",
    "exploring, on another GPU from run 21 on",
)
SPEED_SDS, EPOCHS_SDS = (0.0, 0.1, 0.2), (0.05, 0.14, 0.25)
COUNTS = ((3,), (4,), (5,), (6,), (7, 8, 10), (11, 15, 20, 30))  # runs since the start or change
BEFORE, SLOWER = 20, 1.5  # runs before a change; how much slower they are after it
ARMS, DEFAULT, CURVES = (32, 64, 128, 256), 64, 200
ETA_KNOB = 0.5
SDS90 = 1.645  # 90 % of a Gaussian lie within so many standard deviations


class Cell(NamedTuple):
    """One simulation; everything drawn in it depends on its seed."""

    scenario: str
    speed_sd: float
    epochs_sd: float
    seed: int


def median_epochs(arm: int) -> float:
    """Return the median epochs of a batch size."""
    return 40 * (1 + arm / 256)


def build_job(cell: Cell) -> SimulatedJob:
    """Build the job of a cell."""
    rng = np.random.default_rng(cell.seed)
    curves = {}
    for arm in (DEFAULT,) if cell.scenario in {ALONE, SLOWED} else ARMS:
        luck = np.exp(cell.epochs_sd * rng.standard_normal(CURVES))
        epochs = np.maximum(3, np.round(median_epochs(arm) * luck)).astype(int).tolist()
        curves[arm] = [LearningCurve(n, ((1, 0.3), (n // 2 + 1, 0.7), (n, 1.0))) for n in epochs]
    slow = np.exp(cell.speed_sd * rng.standard_normal(BEFORE + COUNTS[-1][-1]))
    if cell.scenario == SLOWED:
        slow[BEFORE:] *= SLOWER
    return SimulatedJob(
        name="range",
        default=DEFAULT,
        mode="max",
        target=1.0,
        max_epochs=1000,
        max_power_w=300.0,
        rates={arm: {300.0: Rate(1000 + 64000 / arm, 200.0)} for arm in curves},
        eras=[(1, curves)],
        slowness=dict(enumerate(slow.tolist(), 1)),
    )


class Judged(NamedTuple):
    """The range of the next run of the incumbent."""

    share: float  # of such runs that lie within it
    width: float  # relative to that of someone who knows the noise of speed
    wider: float  # the same of someone who knows the noise of epochs, too


def simulate(cell: Cell) -> dict[int, Judged]:
    """Judge the range by the number of runs since the start or the change."""
    job, policy = build_job(cell), create_policy("auto")
    problem = ask_about(job, ETA_KNOB, 2.0)
    before: list[Observation] = []
    if cell.scenario == MOVED:
        there = replace(problem, hardware=Hardware(1, "another", 1))
        for each in replay(job, policy, there, BEFORE, cell.seed):
            trial = replace(each.trial, recurrence=each.trial.recurrence - BEFORE)
            before += read_history(problem, [trial])[1]
    first = BEFORE if cell.scenario == SLOWED else 0
    played = replay(job, policy, problem, first + COUNTS[-1][-1], [cell.seed, 1], before=before)
    runs = before + read_history(problem, [each.trial for each in played])[1]
    found = {}
    for count in chain(*COUNTS):
        past = [run for run in runs if run.recurrence <= first + count]
        since = [run for run in past if run.recurrence > first]
        found[count] = judge(cell, job, assess(problem, past), since)
    return found


def judge(cell: Cell, job: SimulatedJob, now: Assessment, since: Sequence[Observation]) -> Judged:
    """Judge the range after some runs; ``since`` are those since the start or the change."""
    incumbent = now.beliefs.incumbent or 0
    arm = now.beliefs.arms[incumbent]
    low_j, high_j = belief_of(now, incumbent, None, None).cost_range_j or (0.0, math.inf)
    (rate,) = job.rates[arm].values()
    usual_j = median_epochs(arm) * rate.epoch_s * watts(job, rate, ETA_KNOB)
    usual_j *= SLOWER if cell.scenario == SLOWED else 1
    sd = math.hypot(cell.epochs_sd, cell.speed_sd)
    low, high = (math.erf(math.log(j / usual_j) / sd / math.sqrt(2)) for j in (low_j, high_j))
    own = len(now.evidence.reached[arm])
    timed = sum(run.arm == arm for run in since)
    speed = cell.speed_sd**2 * (1 + 1 / max(1, timed))
    learned = now.evidence.run_sd**2 * (1 + 1 / own)
    freedom = now.evidence.freedom * ((learned + speed) / learned) ** 2  # Satterthwaite
    half = math.log(high_j / low_j) / 2
    return Judged(
        (high - low) / 2,
        half / (student(SDS90, freedom) * math.sqrt(learned + speed)),
        half / (SDS90 * math.sqrt(cell.epochs_sd**2 * (1 + 1 / own) + speed)),
    )


def main() -> None:
    """Print a table in Markdown for each scenario."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=150)
    seeds = parser.parse_args().seeds
    print(f"{describe_machine()}; {seeds} seeds")
    errors = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for scenario in SCENARIOS:
            print(f"\n### {scenario[0].upper()}{scenario[1:]}: share within the range, width\n")
            print("| speed | epochs | 3 runs | 4 | 5 | 6 | 7 to 10 | 11 to 30 |")
            print("|---|---|---|---|---|---|---|---|", flush=True)
            for speed_sd, epochs_sd in product(SPEED_SDS, EPOCHS_SDS):
                cells = [Cell(scenario, speed_sd, epochs_sd, seed) for seed in range(seeds)]
                found = list(pool.map(simulate, cells, chunksize=5))
                told = []
                for counts in COUNTS:
                    own = [each[count] for each in found for count in counts]
                    shares, widths, wider = zip(*own, strict=True)
                    errors.append(statistics.stdev(shares) / math.sqrt(seeds))
                    median, other = statistics.median(widths), statistics.median(wider)
                    told.append(f"{statistics.fmean(shares):.0%}, {median:.2f} ({other:.2f})")
                print(f"| {speed_sd:.0%} | {epochs_sd:.0%} | {' | '.join(told)} |", flush=True)
    print(f"\nThe largest standard error of a share is {max(errors):.1%}.")


if __name__ == "__main__":
    main()
