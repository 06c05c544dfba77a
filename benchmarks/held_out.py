"""Regret of ``auto`` on smoothed tables, on jobs it was not tuned on, and on a new GPU.

    python benchmarks/held_out.py --trace-dir DIR [--seeds 40]

DIR holds the public traces of the Zeus project, see regret.py. Recorded speeds and powers contain 2
to 3 % of noise that is the same in every replay, so the tables are smoothed over power limits and
batch sizes. The held-out jobs are those of the tables on two made-up GPUs and with other settings,
and five families of made-up jobs.
"""

from __future__ import annotations

import argparse
import math
import os
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from power_limits import smooth as smooth_over_limits
from regret import COST_FACTOR, ETA_KNOB, HORIZONS, regrets, to_never
from study import Scenario, StudySettings, simulate
from synthetic import CURVES, FAMILIES, LIMITS_W, TARGET, build_job, draw_law
from timing import describe_machine
from traces import Workload, load_jobs

from zeusrun.bandit.registry import create_policy
from zeusrun.bandit.reinterpret import read_trial
from zeusrun.simulate.engine import LearningCurve, Rate, best_arm, expected
from zeusrun.simulate.replay import ask_about, replay
from zeusrun.trial import Hardware

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.random import Generator
    from study import Episode

    from zeusrun.simulate.engine import SimulatedJob

SMOOTHNESS = 0.15  # weight of squared second differences of log speed over log2 of the batch size
OTHER_SETTINGS = (
    Workload("cifar100", 128, 0.55, 60),
    Workload("imagenet", 192, 0.62, 80),
    Workload("squad", 8, 83, 6),
    Workload("librispeech", 16, 45, 16, "min"),
    Workload("movielens-1m", 128, 0.40, 60),
    Workload("sentiment140", 16, 0.83, 10),
)


def smooth(job: SimulatedJob) -> SimulatedJob:
    """Smooth log seconds and log watts of an epoch."""
    rates: dict[int, dict[float, list[float]]] = {}
    for arm, own in job.rates.items():
        limits_w = np.array(sorted(own))
        seconds, watts = np.array([own[limit_w] for limit_w in limits_w]).T
        smoothed = zip(*smooth_over_limits(limits_w, seconds, watts), strict=True)
        rates[arm] = dict(zip(limits_w.tolist(), map(list, smoothed), strict=True))
    for limit_w in job.power_limits_w:
        arms = [arm for arm in job.arms if limit_w in rates[arm]]
        if len(arms) < 4:
            continue
        x = np.log2(arms)
        left, right = np.diff(x)[:-1], np.diff(x)[1:]
        bend = np.zeros((len(arms) - 2, len(arms)))
        row = np.arange(len(arms) - 2)
        bend[row, row] = 2 / (left * (left + right))
        bend[row, row + 1] = -2 / (left * right)
        bend[row, row + 2] = 2 / (right * (left + right))
        logs = np.log([rates[arm][limit_w] for arm in arms])
        fitted = np.exp(np.linalg.solve(np.eye(len(arms)) + SMOOTHNESS * bend.T @ bend, logs))
        for arm, both in zip(arms, fitted.tolist(), strict=True):
            rates[arm][limit_w] = both
    return replace(
        job,
        rates={arm: {w: Rate(*both) for w, both in own.items()} for arm, own in rates.items()},
    )


def on_other_gpu(
    job: SimulatedJob, faster: float, limits_w: tuple[float, ...], idle_w: float
) -> SimulatedJob:
    """Move a job to a GPU that is so many times faster per sample, with as much time per step."""
    arms = np.array(job.arms, dtype=float)
    top = np.array([job.rates[arm][max(job.rates[arm])].epoch_s for arm in job.arms])
    parts = np.stack([1 / arms, np.ones(len(arms))], axis=1) / top[:, None]
    step_s, sample_s = np.linalg.lstsq(parts, np.ones(len(arms)), rcond=None)[0]
    step_s, sample_s = max(step_s, 0.0), max(sample_s, 0.02 * top.min())
    unexplained = np.clip(top / (step_s / arms + sample_s), 0.7, 1.4)
    highest_w = max(limits_w)
    rates = {}
    for arm, rest in zip(job.arms, unexplained.tolist(), strict=True):
        busy_s, wait_s = sample_s / faster, step_s / arm
        busy = busy_s / (busy_s + wait_s)
        wanted_w = idle_w + 0.93 * (highest_w - idle_w) * busy**0.7
        rates[arm] = {}
        for limit_w in limits_w:
            power_w = min(limit_w, wanted_w)
            clock = ((power_w - idle_w) / (wanted_w - idle_w)) ** (1 / 2.5)
            rates[arm][limit_w] = Rate(rest * (busy_s / clock + wait_s), power_w)
    return replace(job, rates=rates, max_power_w=highest_w)


@cache
def tables(directory: Path, suite: str) -> Mapping[str, SimulatedJob]:
    """Return the jobs of a suite by name."""
    jobs = {
        gpu: {job.name: smooth(job) for job in load_jobs(directory, gpu)}
        for gpu in ("v100", "p100")
    }
    if suite == "smoothed tables":
        return {f"{gpu} {name}": job for gpu, own in jobs.items() for name, job in own.items()}
    fast = tuple(range(100, 301, 25))
    slow = tuple(range(110, 231, 20))
    other = [smooth(load_jobs(directory, "v100", [each])[0]) for each in OTHER_SETTINGS]
    return {
        **{f"fast {n}": on_other_gpu(job, 2.5, fast, 30) for n, job in jobs["v100"].items()},
        **{f"slow {n}": on_other_gpu(job, 0.7, slow, 25) for n, job in jobs["p100"].items()},
        **{f"other settings {job.name}": job for job in other},
    }


def _with_curves(job: SimulatedJob, curves: Mapping[int, list[LearningCurve]]) -> SimulatedJob:
    return replace(job, eras=[(1, curves)])


def wild(rng: Generator) -> SimulatedJob:
    """Runs differ by a factor, and a tenth of them fail with every batch size."""
    law = draw_law(rng, converge=True)
    law = replace(law, run_sd=0.4, max_epochs=2 * law.max_epochs)
    job = build_job("wild", [(1, law)], rng)
    curves = {}
    for arm, own in job.eras[0][1].items():
        curves[arm] = list(own)
        for i in rng.choice(CURVES, CURVES // 10, replace=False):
            curves[arm][i] = LearningCurve(None, own[i].pace[: max(1, len(own[i].pace) // 2)])
    return _with_curves(job, curves)


def hole(rng: Generator) -> SimulatedJob:
    """Of twenty batch sizes, three to six in the middle miss the target."""
    law = draw_law(rng, converge=True)
    smallest = 2 ** int(rng.integers(1, 4))
    arms = tuple(sorted({round(smallest * 2 ** (k / 2)) for k in range(20)}))
    width = int(rng.integers(3, 7))
    at = int(rng.integers(4, len(arms) - width - 4))
    missing = arms[at : at + width]
    good = [arm for arm in arms if arm not in missing]
    law = replace(
        law,
        arms=arms,
        default=good[int(rng.integers(len(good)))],
        critical=float(np.exp(rng.uniform(np.log(arms[3]), np.log(arms[-1])))),
        overhead=float(np.exp(rng.uniform(np.log(arms[0]), np.log(arms[-1])))),
        converging=(arms[0], arms[-1]),
    )
    job = build_job("hole", [(1, law.with_enough_epochs())], rng)
    curves = {arm: list(own) for arm, own in job.eras[0][1].items()}
    for arm in missing:
        curves[arm] = [
            LearningCurve(None, own.pace[: int(rng.integers(1, max(2, len(own.pace) * 2 // 3)))])
            for own in curves[arm]
        ]
    return _with_curves(job, curves)


def worst_default(rng: Generator) -> SimulatedJob:
    """The default is at the more expensive end of the batch sizes."""
    while True:
        law = draw_law(rng, converge=True)
        rates = build_job("", [(1, law)], rng).rates
        ends = law.arms[0], law.arms[-1]
        worst = max(
            ends, key=lambda arm: law.median_epochs(arm) * rates[arm][max(LIMITS_W)].epoch_s
        )
        law = replace(law, default=worst, max_epochs=0).with_enough_epochs()
        job = build_job("worst-default", [(1, law)], rng)
        least = expected(job, best_arm(job, ETA_KNOB, 1), ETA_KNOB, 1).cost_j
        if expected(job, worst, ETA_KNOB, 1).cost_j > 1.5 * least:
            return job


def jump(rng: Generator) -> SimulatedJob:
    """The metric stands still for half to five sixths of the way, and then jumps."""
    job = build_job("jump", [(1, draw_law(rng))], rng)
    stand = float(rng.uniform(0.5, 0.85))
    curves = {}
    for arm, own in job.eras[0][1].items():
        curves[arm] = []
        for curve in own:
            epochs, pace = curve
            if epochs is None:
                low = tuple(each for each in pace if each[1] <= 0.25 * TARGET) or pace[:1]
                curves[arm].append(LearningCurve(None, low))
            elif epochs < 3:
                curves[arm].append(curve)
            else:
                begin = max(1, round(0.15 * epochs))
                leap = max(begin + 1, round(stand * epochs))
                late = {e: max(0.3 * TARGET, v) for e, v in pace if leap <= e < epochs}
                points = {begin: 0.2 * TARGET, **late, epochs: TARGET}
                curves[arm].append(LearningCurve(epochs, tuple(sorted(points.items()))))
    return _with_curves(job, curves)


def cliff(rng: Generator) -> SimulatedJob:
    """Costs are nearly the same up to a batch size, and larger ones miss the target."""
    law = draw_law(rng, converge=True)
    arms = tuple(law.arms[0] * 2**k for k in range(int(rng.integers(7, 12))))
    edge = int(rng.integers(3, len(arms) - 1))
    law = replace(
        law,
        arms=arms,
        default=arms[int(rng.integers(max(0, edge - 3), edge + 1))],
        critical=arms[-1] * 16.0,
        overhead=arms[0] / 4,
        converging=(arms[0], arms[edge]),
    )
    return build_job("cliff", [(1, law.with_enough_epochs())], rng)


HELD_OUT = {
    "wild": wild,
    "hole": hole,
    "worst-default": worst_default,
    "jump": jump,
    "cliff": cliff,
}
_STREAM = 77  # with a seed: the generator that a job is made from


def play(
    cell: tuple[str, str, str, int],
    directory: Path,
    in_flight: int,
    recurrences: int = HORIZONS[-1],
) -> Episode:
    """Simulate one seed of one job of a suite under a policy."""
    suite, name, policy, seed = cell
    families = {**FAMILIES, **HELD_OUT}
    if name in families:
        job = families[name](np.random.default_rng([seed, _STREAM]))
    else:
        job = tables(directory, suite)[name]
    settings = StudySettings(
        recurrences=recurrences if name not in families else HORIZONS[1],
        eta_knob=ETA_KNOB,
        cost_factor=COST_FACTOR,
        in_flight=in_flight,
    )
    return simulate(Scenario(name, job), policy, seed, settings)


def study(
    suite: str, names: Iterable[str], seeds: int, directory: Path, in_flight: int = 1
) -> dict[str, dict[str, list[Episode]]]:
    """Return the episodes by job and policy."""
    cells = [
        (suite, n, policy, s) for n in names for policy in ("auto", "zeus") for s in range(seeds)
    ]
    found: defaultdict[str, dict[str, list[Episode]]] = defaultdict(
        lambda: {"auto": [], "zeus": []}
    )
    work = partial(play, directory=directory, in_flight=in_flight)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for cell, episode in zip(cells, pool.map(work, cells, chunksize=8), strict=True):
            found[cell[1]][cell[2]].append(episode)
    return found


def error(values: np.ndarray) -> float:
    """Standard error of the mean."""
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def report(suite: str, cells: Mapping[str, Mapping[str, list[Episode]]], *, jobs: bool) -> None:
    """Print a table of a suite of recorded jobs."""
    print(f"\n### {suite}\n")
    if jobs:
        print("| job | regret, `auto` | `zeus` | ÷ `zeus` | cost ÷ never optimising, T=20 | T=50 |")
        print("|---|---|---|---|---|---|")
    ratios = []
    for name, own in cells.items():
        auto, zeus = (regrets(own[policy], 50) for policy in ("auto", "zeus"))
        ratios.append(auto.mean() / zeus.mean())
        never = [to_never(own["auto"], t).mean() for t in HORIZONS[:2]]
        told = f"{auto.mean():.2f} ± {error(auto):.2f} | {zeus.mean():.2f} | {ratios[-1]:.2f}"
        if jobs:
            print(f"| {name} | {told} | {never[0]:.3f} | {never[1]:.3f} |")
    print("\n| | T=20 | T=50 | T=100 |\n|---|---|---|---|")
    mean = [np.mean([regrets(own["auto"], t) for own in cells.values()]) for t in HORIZONS]
    print(f"| mean regret, `auto` | {' | '.join(f'{each:.2f}' for each in mean)} |")
    pooled = []
    for t in HORIZONS:
        zeus = sum(regrets(own["zeus"], t).mean() for own in cells.values())
        auto = sum(regrets(own["auto"], t) for own in cells.values()) / zeus
        low, high = np.quantile(auto, (0.05, 0.95))
        pooled.append(f"{auto.mean():.3f} ± {error(auto):.3f} ({low:.2f} to {high:.2f})")
    print(f"| pooled regret ÷ `zeus` (p5 to p95 of the seeds) | {' | '.join(pooled)} |")
    told = []
    for t in HORIZONS:
        never = [to_never(own["auto"], t).mean() for own in cells.values()]
        told.append(f"{max(never):.3f}; {sum(each > 1 for each in never)} of {len(never)}")
    print(f"| cost ÷ never optimising: worst job; above 1 | {' | '.join(told)} |")
    print(f"| worst job, regret ÷ `zeus` | | {max(ratios):.2f} | |")


def move(directory: Path, seed: int) -> list[tuple[str, float, float]]:
    """Return regrets of 30 recurrences on a GPU: after 20 on another one, and without them."""
    jobs = tables(directory, "smoothed tables")
    rows = []
    for name, job in jobs.items():
        gpu, dataset = name.split()
        before = jobs[f"{'p100' if gpu == 'v100' else 'v100'} {dataset}"]
        best = expected(job, best_arm(job, ETA_KNOB, 1), ETA_KNOB, 1).cost_j
        then, now = (
            replace(ask_about(each, ETA_KNOB, COST_FACTOR), hardware=Hardware(1, model, 1))
            for each, model in ((before, "old"), (job, "new"))
        )
        old = replay(before, create_policy("auto"), then, 20, [seed, 5])
        trials = [replace(each.trial, recurrence=each.trial.recurrence - 100) for each in old]
        known = [run for trial in trials if (run := read_trial(now, trial)) is not None]
        spent = [
            sum(
                each.trial.cost_j or 0.0
                for each in replay(job, create_policy("auto"), now, 30, [seed], before=runs)
            )
            for runs in (known, ())
        ]
        rows.append((name, spent[0] / best - 30, spent[1] / best - 30))
    return rows


def main() -> None:
    """Print tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trace-dir", type=Path, required=True, help="where the traces are")
    parser.add_argument("--seeds", type=int, default=40)
    given = parser.parse_args()
    directory, seeds = given.trace_dir, given.seeds
    print(f"{describe_machine()}; {seeds} seeds, eta_knob {ETA_KNOB}, cost factor {COST_FACTOR:g}")
    for suite in ("smoothed tables", "held-out tables"):
        names = list(tables(directory, suite))
        report(suite, study(suite, names, seeds, directory), jobs=True)
    for in_flight in (2, 3):
        names = list(tables(directory, "smoothed tables"))
        cells = study("smoothed tables", names, seeds, directory, in_flight)
        report(f"smoothed tables, {in_flight} recurrences at once", cells, jobs=False)
    print("\n### Held-out families, T=50\n")
    print("| family | regret, `auto` | `zeus` | ratio of means | of medians | gave up |")
    print("|---|---|---|---|---|---|")
    for name, own in study("", HELD_OUT, seeds, directory).items():
        auto, zeus = (regrets(own[policy], 50) for policy in ("auto", "zeus"))
        ratios = f"{auto.mean() / zeus.mean():.2f} | {np.median(auto) / np.median(zeus):.2f}"
        gave_up = sum(int((~each.reached).sum()) for each in own["auto"])
        means = f"{auto.mean():.2f} ± {error(auto):.2f} | {zeus.mean():.2f} ± {error(zeus):.2f}"
        print(f"| {name} | {means} | {ratios} | {gave_up} |")
    print("\n### On a new GPU: regret of 30 recurrences\n")
    print("| job | after 20 on the other GPU | without a history |\n|---|---|---|")
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rows = list(zip(*pool.map(partial(move, directory), range(seeds // 2)), strict=True))
    for row in rows:
        moved, fresh = np.array([each[1:] for each in row]).T
        told = f"{moved.mean():.2f} ± {error(moved):.2f} | {fresh.mean():.2f} ± {error(fresh):.2f}"
        print(f"| {row[0][0]} | {told} |")
    both = np.array([[each[1:] for each in row] for row in rows]).sum(0).mean(0)
    print(f"| all | {both[0]:.2f} | {both[1]:.2f} |")


if __name__ == "__main__":
    main()
