"""Regret of every policy on recorded and made-up jobs, and what a decision takes.

    python benchmarks/regret.py --trace-dir DIR [--seeds 40]

DIR holds ``summary_train.csv`` and ``summary_power_<gpu>.csv`` in the schema of the Zeus project.
Without it, only the made-up jobs are run.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.progress import Progress
from study import Episode, Scenario, StudySettings, run_study
from synthetic import FAMILIES
from timing import describe_machine
from traces import WORKLOADS, load_jobs

from zeusrun.bandit.registry import POLICIES, create_policy
from zeusrun.bandit.reinterpret import read_history
from zeusrun.simulate.engine import expected
from zeusrun.simulate.replay import ask_about, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from zeusrun.simulate.engine import SimulatedJob

HORIZONS = (20, 50, 100)
ETA_KNOB, COST_FACTOR = 0.5, 2.0

# Cumulative cost of 50 recurrences in joules: 5th percentile, median, 95th percentile over 200
# seeds of the published simulator and policy (zeus-ml 0.2.0 as on PyPI, eta_knob 0.5, beta 2) on
# the same traces. Its power limits are profiled in the first epoch at no extra time.
PUBLISHED = {
    ("v100", "cifar100"): (3.264e6, 3.362e6, 3.461e6),
    ("v100", "imagenet"): (8.899e8, 9.055e8, 9.209e8),
    ("v100", "squad"): (7.882e7, 8.070e7, 8.257e7),
    ("v100", "librispeech"): (4.842e8, 4.980e8, 5.155e8),
    ("v100", "movielens-1m"): (2.710e5, 2.840e5, 3.061e5),
    ("v100", "sentiment140"): (1.4286e8, 1.4286e8, 1.4286e8),
    ("p100", "cifar100"): (5.592e6, 5.788e6, 5.959e6),
    ("p100", "imagenet"): (2.090e9, 2.110e9, 2.129e9),
    ("p100", "squad"): (1.137e8, 1.152e8, 1.168e8),
    ("p100", "librispeech"): (1.494e9, 1.546e9, 1.589e9),
    ("p100", "movielens-1m"): (4.651e5, 4.927e5, 5.369e5),
    ("p100", "sentiment140"): (2.2527e8, 2.2527e8, 2.2527e8),
}


def simulate(
    console: Console,
    what: str,
    scenarios: Sequence[Scenario],
    policies: Sequence[str],
    seeds: range,
) -> list[Episode]:
    """Run a study on all cores, with a progress bar."""
    settings = StudySettings(
        recurrences=max(HORIZONS), eta_knob=ETA_KNOB, cost_factor=COST_FACTOR, in_flight=1
    )
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        return run_study(
            scenarios,
            policies,
            seeds,
            settings,
            processes=os.cpu_count() or 1,
            on_progress=lambda share: bar.update(task, completed=share),
        )


def regrets(episodes: Iterable[Episode], horizon: int) -> np.ndarray:
    """Regret in expected costs of a best run, by seed."""
    return np.array([_regret(each, horizon) for each in episodes])


def _regret(episode: Episode, horizon: int) -> float:
    best = episode.best[:horizon, 0]
    return float((episode.regret_j[:horizon] / best).sum())


def to_never(episodes: Iterable[Episode], horizon: int) -> np.ndarray:
    """Cost against never optimising, by seed; 0 where the default never reaches the target."""
    return np.array(
        [each.spent[:horizon, 0].sum() / each.never[:horizon, 0].sum() for each in episodes]
    )


def spread(values: Sequence[float] | np.ndarray, digits: int = 2) -> str:
    """Median and 5th to 95th percentile."""
    low, middle, high = np.quantile(values, (0.05, 0.5, 0.95))
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def traces(console: Console, trace_dir: Path, gpus: Sequence[str], seeds: int) -> None:
    """Compare on recorded jobs."""
    cells: dict[tuple[str, str], dict[str, list[Episode]]] = {}
    for gpu in gpus:
        scenarios = [Scenario(job.name, job) for job in load_jobs(trace_dir, gpu)]
        for episode in simulate(console, gpu, scenarios, list(POLICIES), range(seeds)):
            own = cells.setdefault((gpu, episode.name), defaultdict(list))
            own[episode.policy].append(episode)

    print("\n### `zeus` against the published policy: cumulative cost of 50 recurrences, MJ\n")
    print("| job | published, median (p5 to p95) | ours | median, ours ÷ published |")
    print("|---|---|---|---|")
    for key, own in cells.items():
        ours = np.array([each.spent[:50, 0].sum() for each in own["zeus"]])
        if key in PUBLISHED:
            low, middle, high = (joules / 1e6 for joules in PUBLISHED[key])
            ratio = np.median(ours) / 1e6 / middle
            told = f"{middle:.4g} ({low:.4g} to {high:.4g})"
            print(f"| {' '.join(key)} | {told} | {_joules(ours)} | {ratio:.3f} |")

    print("\n### Regret in best runs, mean over seeds\n")
    header = " | ".join(f"`{name}` T={t}" for t in HORIZONS for name in ("auto", "zeus"))
    print(f"| job | {header} | T=50: `auto`, median (p5 to p95) | ÷ `zeus` |")
    print("|---|" + "---|" * (2 * len(HORIZONS) + 2))
    for key, own in cells.items():
        means = [regrets(own[name], t).mean() for t in HORIZONS for name in ("auto", "zeus")]
        ratio = regrets(own["auto"], 50).mean() / regrets(own["zeus"], 50).mean()
        figures = " | ".join(f"{mean:.2f}" for mean in means)
        told = spread(regrets(own["auto"], 50))
        print(f"| {' '.join(key)} | {figures} | {told} | {ratio:.2f} |")

    print("\n### All jobs\n")
    print("| | " + " | ".join(f"T={t}" for t in HORIZONS) + " |")
    print("|---|" + "---|" * len(HORIZONS))
    for name in POLICIES:
        row = [_mean_regret(cells, name, t) for t in HORIZONS]
        print(f"| mean regret, `{name}` | " + " | ".join(f"{r:.2f}" for r in row) + " |")
    rows: list[tuple[str, Callable[[int], str]]] = [
        ("pooled regret ÷ `zeus`, median (p5 to p95) of the seeds", lambda t: _pooled(cells, t)),
        ("geometric mean of regret ÷ `zeus`", lambda t: f"{_geometric(cells, t):.3f}"),
        ("worst of the jobs", lambda t: f"{max(_ratios(cells, t)):.2f}"),
        ("movielens-1m, pooled", lambda t: _pooled(cells, t, "movielens-1m")),
        ("cost ÷ never optimising, worst job", lambda t: f"{_worst_to_never(cells, t):.3f}"),
    ]
    for name, figure in rows:
        print(f"| {name} | " + " | ".join(figure(t) for t in HORIZONS) + " |")


def _joules(values: np.ndarray) -> str:
    low, middle, high = np.quantile(values / 1e6, (0.05, 0.5, 0.95))
    return f"{middle:.4g} ({low:.4g} to {high:.4g})"


Cells = dict[tuple[str, str], dict[str, list[Episode]]]


def _mean_regret(cells: Cells, policy: str, horizon: int) -> float:
    return statistics.fmean(regrets(own[policy], horizon).mean() for own in cells.values())


def _ratios(cells: Cells, horizon: int) -> list[float]:
    return [
        float(regrets(own["auto"], horizon).mean() / regrets(own["zeus"], horizon).mean())
        for own in cells.values()
    ]


def _geometric(cells: Cells, horizon: int) -> float:
    return math.exp(statistics.fmean(math.log(max(r, 1e-3)) for r in _ratios(cells, horizon)))


def _pooled(cells: Cells, horizon: int, job: str = "") -> str:
    """Ratio of the means over seeds, and the spread of single seeds against the mean of zeus."""
    chosen = [own for (_, name), own in cells.items() if job in name]
    auto = sum(regrets(own["auto"], horizon) for own in chosen)
    zeus = sum(regrets(own["zeus"], horizon).mean() for own in chosen)
    return f"{np.mean(auto) / zeus:.3f}; {spread(auto / zeus, 3)}"


def _worst_to_never(cells: Cells, horizon: int) -> float:
    return max(float(to_never(own["auto"], horizon).mean()) for own in cells.values())


def families(console: Console, seeds: range) -> None:
    """Compare on made-up jobs, another one for every seed."""
    scenarios = [Scenario(name, make) for name, make in FAMILIES.items()]
    episodes = simulate(console, "made-up jobs", scenarios, ["auto", "zeus"], seeds)
    print("\n### Synthetic jobs, one per seed, T=50\n")
    print(
        "| family | regret in best runs, `auto` | `zeus` | ratio of means | ratio of medians "
        "| `auto` ÷ never optimising: mean; median (p5 to p95) | worst "
        "| no model, of those at the last attempt: `auto` | `zeus` |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in FAMILIES:
        own = {
            policy: [e for e in episodes if (e.name, e.policy) == (name, policy)]
            for policy in ("auto", "zeus")
        }
        auto, zeus = regrets(own["auto"], 50), regrets(own["zeus"], 50)
        never = to_never(own["auto"], 50)
        against = f"{never.mean():.3f}; {spread(never, 3)} | {never.max():.2f}"
        if not never.all():
            against = "– | –"  # noqa: RUF001
        print(
            f"| {name} | {spread(auto)} | {spread(zeus)} | {auto.mean() / zeus.mean():.2f} "
            f"| {np.median(auto) / np.median(zeus):.2f} | {against} "
            f"| {_gave_up(own['auto'])} | {_gave_up(own['zeus'])} |"
        )


def _gave_up(episodes: Sequence[Episode]) -> str:
    """Recurrences without a model, of those that came to their last attempt."""
    gave_up = sum(int((~each.reached).sum()) for each in episodes)
    return f"{gave_up} of {sum(each.last_attempts for each in episodes)}"


def errors(console: Console, jobs: int) -> None:
    """Run every policy on many made-up jobs; whatever is raised ends the benchmark."""
    scenarios = [Scenario(name, make) for name, make in FAMILIES.items()]
    each = math.ceil(jobs / len(FAMILIES))
    settings = StudySettings(
        recurrences=50, eta_knob=ETA_KNOB, cost_factor=COST_FACTOR, in_flight=1
    )
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("errors", total=1.0)
        episodes = run_study(
            scenarios,
            list(POLICIES),
            range(10_000, 10_000 + each),
            settings,
            processes=os.cpu_count() or 1,
            on_progress=lambda share: bar.update(task, completed=share),
        )
    gave_up = {
        name: sum(int((~each.reached).sum()) for each in episodes if each.policy == name)
        for name in POLICIES
    }
    print(
        f"\n{each * len(FAMILIES)} other synthetic jobs, 0 errors; recurrences given up: {gave_up}"
    )


def speed(job: SimulatedJob) -> None:
    """Time decisions and simulated runs on one core."""
    print("\n### Speed, on one core: median (min to max)\n")
    print("| | " + " | ".join(f"`{name}`" for name in POLICIES) + " |")
    print("|---|" + "---|" * len(POLICIES))
    problem = ask_about(job, ETA_KNOB, COST_FACTOR)
    arms = replay(job, create_policy("auto"), problem, 100, 0)
    for count in (100, 2000):
        trials = [
            replace(arms[n % len(arms)].trial, recurrence=n + 1, trial=f"t{n}")
            for n in range(count)
        ]

        def decide(name: str, trials: list = trials) -> None:
            now, runs = read_history(problem, trials)
            create_policy(name).choose(now, runs, np.random.default_rng(0))

        rows = [_milliseconds(lambda name=name: decide(name), 15) for name in POLICIES]
        print(f"| a decision at {count} trials, reading them included, ms | {' | '.join(rows)} |")
    rows = []
    for name in POLICIES:
        runs = len(replay(job, create_policy(name), problem, 50, 0))
        rows.append(
            _milliseconds(
                lambda name=name: replay(job, create_policy(name), problem, 50, 0), 15, runs
            )
        )
    print(f"| simulating a run ({job.name}, T=50), ms | {' | '.join(rows)} |")


def _milliseconds(call: Callable[[], object], repeats: int, share: int = 1) -> str:
    figures = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        call()
        figures.append((time.perf_counter() - started) * 1e3 / share)
    figures = figures[1:]
    return f"{statistics.median(figures):.2f} ({min(figures):.2f} to {max(figures):.2f})"


def main() -> None:
    """Print tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trace-dir", type=Path, help="where the traces are")
    parser.add_argument("--gpu", action="append", help="v100 and p100 if left out")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--first-seed", type=int, default=0, help="of the made-up jobs")
    parser.add_argument("--jobs", type=int, default=500, help="made-up jobs to look for errors on")
    given = parser.parse_args()
    console = Console(stderr=True)
    print(f"{describe_machine()}; {given.seeds} seeds, eta_knob {ETA_KNOB}, cost factor 2")
    gpus = given.gpu or ["v100", "p100"]
    if given.trace_dir is not None:
        traces(console, given.trace_dir, gpus, given.seeds)
    families(console, range(given.first_seed, given.first_seed + given.seeds))
    errors(console, given.jobs)
    job = FAMILIES["law"](np.random.default_rng(1))
    if given.trace_dir is not None:
        (job,) = load_jobs(given.trace_dir, gpus[0], [WORKLOADS["cifar100"]])
    if math.isfinite(expected(job, job.default, ETA_KNOB, 1).cost_j):
        speed(job)


if __name__ == "__main__":
    main()
