"""What a policy makes of an edit: a harmless one, and one that multiplies the epochs by 1.5.

    python benchmarks/eras.py [--trace-dir DIR] [--seeds 20]

After ``BEFORE`` recurrences the script of each job is edited, and the policy is told so. It is
compared with one who knows what the edit has changed: all of the history counts, or none of its
epochs. Targets: a harmless edit costs at most 5 % of what the history is worth; a factor of 1.5 is
noticed within four runs in 80 % of the jobs; the regret after either is at most 1.3 times that of
knowing. DIR is as in ``regret.py``; without it only made-up jobs are run.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from synthetic import FAMILIES
from timing import describe_machine
from traces import load_jobs

from zeusrun.bandit.auto.drift import DOUBTED, weigh_runs
from zeusrun.bandit.auto.policy import Auto
from zeusrun.bandit.reinterpret import read_trial
from zeusrun.simulate.engine import LearningCurve, SimulatedJob, best_arm, expected
from zeusrun.simulate.replay import ask_about, replay
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator

    from zeusrun.bandit.problem import Observation, Problem
    from zeusrun.simulate.replay import Played
    from zeusrun.trial import Decision

BEFORE, AFTER = 20, 30  # recurrences
FACTOR = 1.5
ETA_KNOB = 0.5
MADE_UP = ("law", "default-best", "bimodal", "heavy-noise")
LOOKED_AT = 4  # runs after the edit


class Told(Auto):
    """``auto``, and what it takes runs before the edit for."""

    def __init__(self, past: str) -> None:
        self._past = past

    def choose(self, problem: Problem, runs: Sequence[Observation], rng: Generator) -> Decision:
        """Choose the next trial."""
        if problem.recurrence > BEFORE:
            runs = [self._read(run) for run in runs]
        return super().choose(problem, runs, rng)

    def _read(self, run: Observation) -> Observation:
        if run.recurrence > BEFORE or self._past == "counts":
            return run
        if self._past == "is of another script":
            return run._replace(differs="script:1")
        return run._replace(status=TrialStatus.CANCELLED, epochs=None, pace=())  # only its speed


class Seen(NamedTuple):
    """One replay."""

    regret: float  # after the edit, in best runs
    noticed: bool  # whether runs before the edit count less than half after four runs


def edit(job: SimulatedJob, factor: float) -> SimulatedJob:
    """Return a job whose runs take so many times the epochs after the edit."""
    (_, curves), *_ = job.eras
    most = round(job.max_epochs * max(1.0, factor))

    def slower(curve: LearningCurve) -> LearningCurve:
        pace = {max(1, round(epoch * factor)): value for epoch, value in curve.pace}
        epochs = None if curve.epochs is None else max(1, round(curve.epochs * factor))
        return LearningCurve(epochs, tuple(pace.items()))

    later = {arm: [slower(curve) for curve in own] for arm, own in curves.items()}
    return replace(job, max_epochs=most, eras=[(1, curves), (BEFORE + 1, later)])


def play(job: SimulatedJob, past: str, seed: int) -> Seen:
    """Replay a job."""
    problem = ask_about(job, ETA_KNOB, 2.0)
    played = replay(job, Told(past), problem, BEFORE + AFTER, seed)
    later = [each.trial for each in played if each.trial.recurrence > BEFORE]
    arm = best_arm(job, ETA_KNOB, BEFORE + 1)
    best_j = expected(job, arm, ETA_KNOB, BEFORE + 1).cost_j
    spent_j = sum(trial.cost_j or 0.0 for trial in later)
    return Seen(spent_j / best_j - AFTER, _noticed(problem, played))


def _noticed(problem: Problem, played: Sequence[Played]) -> bool:
    settled = {TrialStatus.REACHED, TrialStatus.MISSED, TrialStatus.STOPPED}
    runs = [read_trial(problem, each.trial) for each in played if each.trial.status in settled]
    found = [run for run in runs if run is not None]
    before = [run._replace(differs="script:1") for run in found if run.recurrence <= BEFORE]
    since = [run for run in found if run.recurrence > BEFORE][:LOOKED_AT]
    return (
        float(np.mean([each.chance for each in weigh_runs([*before, *since])[: len(before)]]))
        < DOUBTED
    )


PASTS = ("counts", "is of another script", "is forgotten")


def compare(cell: tuple[Sequence[SimulatedJob], int]) -> np.ndarray:
    """Return regret and whether it was noticed, shape ``(jobs, 3 pasts, 2)``."""
    jobs, seed = cell
    return np.array([[play(job, past, seed) for past in PASTS] for job in jobs])


def moved(seed: int) -> SimulatedJob:
    """Return a job of which other batch sizes are best after the edit."""
    job = FAMILIES["drift"](np.random.default_rng([seed, 77]))
    (_, before), (_, after) = job.eras
    return replace(job, eras=[(1, before), (BEFORE + 1, after)])


def show(name: str, figures: np.ndarray) -> None:
    """Print a row of a group of jobs; ``figures`` has shape ``(jobs, 2, 3, 2)``."""
    (knows, told, forgets), (_, changed, known) = figures[..., 0].mean(0)
    worth = forgets - knows
    jobs = len(figures)
    resampled = np.random.default_rng(0).integers(jobs, size=(1000, jobs))
    means = figures[..., 0][resampled].mean(1)
    cost = (means[:, 0, 1] - means[:, 0, 0]) / (means[:, 0, 2] - means[:, 0, 0])
    ratio = means[:, 1, 1] / means[:, 1, 2]
    print(
        f"| {name} | {knows:.2f} | {told:.2f} | {forgets:.2f} | {(told - knows) / worth:.1%} "
        f"({np.quantile(cost, 0.05):.1%} to {np.quantile(cost, 0.95):.1%}) "
        f"| {figures[:, 0, 1, 1].mean():.0%} | {changed:.2f} | {known:.2f} | {changed / known:.2f} "
        f"({np.quantile(ratio, 0.05):.2f} to {np.quantile(ratio, 0.95):.2f}) "
        f"| {figures[:, 1, 1, 1].mean():.0%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace-dir", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    print(describe_machine())
    seeds = range(arguments.seeds)
    groups: dict[str, list[tuple[SimulatedJob, int]]] = {}
    if arguments.trace_dir:
        for gpu in ("v100", "p100"):
            for job in load_jobs(arguments.trace_dir, gpu, []):
                groups[f"{gpu} {job.name}"] = [(job, seed) for seed in seeds]
    for name in MADE_UP:
        drawn = [FAMILIES[name](np.random.default_rng([seed, 77])) for seed in seeds]
        groups[name] = [(job, seed) for seed, job in enumerate(drawn)]
    print(
        f"regret of {AFTER} recurrences after an edit, in best runs; range of the mean over jobs\n"
        "| job | harmless: knows | told | forgets | cost of its worth | noticed "
        f"| times {FACTOR}: told | knows | ratio | noticed |\n|" + "---|" * 10
    )
    every = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name, cells in groups.items():
            edited = [([edit(job, 1.0), edit(job, FACTOR)], seed) for job, seed in cells]
            every.append(np.array(list(pool.map(compare, edited))))
            show(name, every[-1])
        show("all", np.concatenate(every))
        found = np.array(list(pool.map(compare, [([moved(seed)], seed) for seed in seeds])))
    told = found[:, 0, 1, 0]
    not_told, _, knows = found[:, 0, :, 0].mean(0)
    print(
        f"other batch sizes become the best: told {told.mean():.2f} (standard error "
        f"{told.std() / len(told) ** 0.5:.2f}), not told {not_told:.2f}, knows {knows:.2f}, "
        f"noticed {found[:, 0, 1, 1].mean():.0%}"
    )


if __name__ == "__main__":
    main()
