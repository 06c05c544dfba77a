"""How good and how short the walk over the power limits is, on recorded and made-up profiles.

    python benchmarks/power_limits.py [--trace-dir ../shared/traces] [--seeds 40] [--made-up 200]

Every ``summary_power_<gpu>.csv`` of the directory (schema of the Zeus project) is replayed through
``zeusrun.bandit.power``: it is asked for a limit, is shown speed and power there, and so on until
it has chosen. Recorded profiles scatter by 2 to 3 %, up to 7 %, where no limit can bind, so the
choice is scored against a smoothed truth and the noise of a probe is added to that truth.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from timing import describe_machine
from traces import POWER_COLUMNS, gpus, read_rows

from zeusrun.bandit.power import chosen_point, next_lever
from zeusrun.bandit.problem import PowerObjective, Problem
from zeusrun.lever import POWER, Lever, power_lever
from zeusrun.trial import Hardware, PowerPoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.random import Generator

    Rule = Callable[[Problem, Sequence[PowerPoint], float | None], tuple[int, int]]

NOISES = (0.0, 0.005, 0.01)
CLOSE = 0.01  # a choice within it of the best is as good as the best
FAMILIES = ("cubic", "roofline", "bursty", "step", "unbound")

OBJECTIVES: Mapping[str, tuple[float, PowerObjective]] = {
    **{f"cost, eta_knob {eta:g}": (eta, PowerObjective()) for eta in (0, 0.25, 0.5, 0.75, 1)},
    "energy": (0.5, PowerObjective("energy")),
    "time": (0.5, PowerObjective("time")),
    **{
        f"max_slowdown {factor:g}": (0.5, PowerObjective("max_slowdown", factor))
        for factor in (1.05, 1.1, 1.2)
    },
}
"""Name, then eta_knob and objective."""


class Case(NamedTuple):
    """A training on a GPU, and what is true of it under each power limit.

    Attributes:
        gpu: Model, or family of made-up profiles.
        job: What is trained.
        batch_size: Its samples per step.
        limits_w: Watts, ascending, shape ``(n,)``.
        seconds: Per epoch, shape ``(n,)``; does not rise with the limit.
        watts: Mean draw, shape ``(n,)``; does not fall with the limit.
        max_power_w: The highest limit of the GPU.
    """

    gpu: str
    job: tuple[str, ...]
    batch_size: int
    limits_w: np.ndarray
    seconds: np.ndarray
    watts: np.ndarray
    max_power_w: float


class Walk(NamedTuple):
    """What a walk came to: the index of its choice, the limits measured, its loss.

    Attributes:
        choice: Index of the limit chosen.
        probes: Limits measured.
        sweep: Limits there are.
        loss: Of the objective against the best limit of the truth, as a share of it; for
            ``max_slowdown`` of energy against the best feasible limit, 0 where the choice takes
            less because it is not feasible.
        breach: Time over what ``max_slowdown`` allows, as a share: at most 0 if it is kept, -1
            for other objectives.
    """

    choice: int
    probes: int
    sweep: int
    loss: float
    breach: float


def isotonic(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the non-decreasing values nearest to those given, by pooling adjacent violators.

    Args:
        values: Shape ``(n,)``.
        weights: Shape ``(n,)``, above 0.

    Returns:
        Shape ``(n,)``.
    """
    blocks: list[tuple[float, float, int]] = []  # mean, weight, values in it
    for value, weight in zip(values, weights, strict=True):
        blocks.append((float(value), float(weight), 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (low, own, count), (high, more, others) = blocks.pop(), blocks.pop()
            both = own + more
            blocks.append(((low * own + high * more) / both, both, count + others))
    return np.concatenate([np.full(count, mean) for mean, _, count in blocks])


def smooth(limits_w: np.ndarray, seconds: np.ndarray, watts: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the truth behind noisy seconds and watts: neither goes the wrong way with the limit.

    Limits of at least twice the highest draw bind never: they are one and the same.
    """
    free = limits_w >= 2 * watts.max()
    groups = np.minimum(np.arange(len(limits_w)), np.argmax(free) if free.any() else len(limits_w))
    weights = np.bincount(groups).astype(float)

    def pooled(values: np.ndarray) -> np.ndarray:
        return np.bincount(groups, np.log(values)) / weights

    slow = -isotonic(-pooled(seconds), weights)[groups]
    return np.exp(slow), np.exp(isotonic(pooled(watts), weights)[groups])


def load_cases(directory: Path) -> list[Case]:
    """Read every power trace of a directory; rows that repeat a measurement are averaged.

    Raises:
        UsageError: If a file is damaged.
    """
    cases = []
    for gpu in gpus(directory):
        rows: dict[tuple[tuple[str, ...], int], dict[float, list[tuple[float, float]]]] = {}
        path = directory / f"summary_power_{gpu}.csv"
        for row in read_rows(path, POWER_COLUMNS):
            job = tuple(row.cells[column] for column in POWER_COLUMNS[:3])
            pair = row.positive("time_per_epoch"), row.positive("average_power")
            by_limit = rows.setdefault((job, row.whole("batch_size")), defaultdict(list))
            by_limit[row.positive("power_limit")].append(pair)
        highest = max(limit for by_limit in rows.values() for limit in by_limit)
        for (job_, size_), by_limit in sorted(rows.items()):
            limits_w = np.array(sorted(by_limit))
            means = np.array([np.exp(np.log(by_limit[limit]).mean(0)) for limit in limits_w])
            truth = smooth(limits_w, means[:, 0], means[:, 1])
            cases.append(Case(gpu, job_, size_, limits_w, *truth, highest))
    return cases


def make_up(family: str, rng: Generator) -> Case:
    """Make up a profile of 6 to 15 limits.

    Args:
        family: ``cubic``: power above idle goes with the cube of the clock, time with the clock;
            ``roofline``: with another power, and a share of the time does not heed the clock;
            ``bursty``: the GPU idles for a share of the time, so the mean draw is far below a
            limit that binds; ``step``: no effect down to a limit, then a jump and a slope;
            ``unbound``: no limit binds.
        rng: Draws everything.
    """
    count = int(rng.integers(6, 16))
    highest = float(rng.choice([150, 200, 250, 300, 350, 400, 500, 700]))
    limits_w = np.linspace(rng.uniform(0.28, 0.55), 1, count) * highest
    idle = rng.uniform(0.1, 0.25) * limits_w[0]
    wanted = rng.uniform(0.8 * limits_w[0], 1.25 * highest)
    power, busy = 3.0, 1.0
    if family == "roofline":
        power, busy = rng.uniform(1.5, 3.5), rng.uniform(0.3, 1)
    if family == "bursty":
        power = rng.uniform(2, 3)
    drawn = np.minimum(limits_w, wanted)
    clock = ((drawn - idle) / (wanted - idle)) ** (1 / power)
    seconds = busy / clock + 1 - busy
    watts = drawn * rng.uniform(0.88, 1.0)
    if family == "bursty":
        duty = rng.uniform(0.2, 0.9)
        seconds = duty / clock + 1 - duty
        watts = (duty / clock * drawn + (1 - duty) * 1.5 * idle) / seconds
    if family == "step":
        wanted = rng.uniform(0.5, 0.95) * highest
        drawn = np.minimum(limits_w, wanted)
        slower = ((drawn - idle) / (wanted - idle)) ** (-1 / rng.uniform(2, 4))
        seconds = np.where(drawn < wanted, rng.uniform(1.02, 1.15), 1.0) * slower
        watts = drawn * rng.uniform(0.8, 1.0)
    if family == "unbound":
        seconds, watts = np.ones(count), np.full(count, rng.uniform(0.2, 0.5) * limits_w[0])
    watts = np.maximum.accumulate(watts)
    return Case(family, (family,), 1, limits_w, seconds, watts, highest)


def problem(case: Case, eta_knob: float, objective: PowerObjective) -> Problem:
    """Return what the rule is asked."""
    return Problem(
        candidates=(case.batch_size,),
        default=case.batch_size,
        metric="",
        mode="max",
        target=1.0,
        max_epochs=1,
        eta_knob=eta_knob,
        recurrence=1,
        hardware=Hardware(1, case.gpu, 1),
        energy_measured=True,
        max_power_w=case.max_power_w,
        levers=tuple(Lever(POWER, limit_w) for limit_w in case.limits_w.tolist()),
        power_objective=objective,
    )


def measured(case: Case, noise: float, rng: Generator) -> list[PowerPoint]:
    """Return what a probe of each limit would show."""
    factors = np.exp(rng.normal(0, noise, (2, len(case.limits_w)))) if noise else np.ones((2, 1))
    speeds, watts = 1 / (case.seconds * factors[0]), case.watts * factors[1]
    points = zip(case.limits_w.tolist(), speeds.tolist(), watts.tolist(), strict=True)
    return [PowerPoint(*point) for point in points]


def walk(asked: Problem, points: Sequence[PowerPoint], start_w: float | None) -> tuple[int, int]:
    """Follow the rule to its choice; return the index of it and the number of probes."""
    places = {point.lever: place for place, point in enumerate(points)}
    profile: dict[Lever | None, PowerPoint] = {}
    start = power_lever(start_w)
    while (lever := next_lever(asked, tuple(profile.values()), start)) not in profile:
        if asked.energy_weight == 0:
            break  # it is held unseen
        profile[lever] = points[places[lever]]
    return places[lever], len(profile)


def score(case: Case, asked: Problem, choice: int, probes: int) -> Walk:
    """Compare a choice with the best limit of the truth."""
    objective = asked.power_objective
    eta = asked.energy_weight
    cost = case.seconds * (eta * case.watts + (1 - eta) * case.max_power_w)
    most = objective.factor * case.seconds[-1] if objective.factor else np.inf
    best = cost[case.seconds <= most * (1 + 1e-9)].min()
    loss = max(0.0, float(cost[choice] / best - 1))
    return Walk(choice, probes, len(cost), loss, float(case.seconds[choice] / most - 1))


class Scores(NamedTuple):
    """What came of one objective under one noise: a walk per case and seed.

    Attributes:
        first: Walks without a neighbour to begin at, with the GPU of each.
        second: Walks that began at the choice of the nearest batch size, none for the first of a
            job.
    """

    first: list[tuple[str, Walk]]
    second: list[tuple[str, Walk]]


def replay(cases: Sequence[Case], name: str, noise: float, seeds: int, rule: Rule = walk) -> Scores:
    """Walk every case under one objective; without noise, every seed is alike and one does.

    Args:
        cases: Those of a job in the order in which its batch sizes are tried.
        name: Of the objective.
        noise: Standard deviation of speed and of power, as a share.
        seeds: How often to draw it.
        rule: What chooses; another one to compare with.
    """
    scores = Scores([], [])
    for seed in range(seeds if noise else 1):
        rng = np.random.default_rng(seed)
        choices: dict[tuple[str, tuple[str, ...]], dict[int, float]] = defaultdict(dict)
        for case in cases:
            asked = problem(case, *OBJECTIVES[name])
            points = measured(case, noise, rng)
            choice, probes = rule(asked, points, None)
            scores.first.append((case.gpu, score(case, asked, choice, probes)))
            near = choices[case.gpu, case.job]
            if near:
                size = min(near, key=lambda size: abs(np.log(size / case.batch_size)))
                again = score(case, asked, *rule(asked, points, near[size]))
                scores.second.append((case.gpu, again))
            near[case.batch_size] = float(case.limits_w[choice])
    return scores


def sweep(asked: Problem, points: Sequence[PowerPoint], start_w: float | None) -> tuple[int, int]:
    """Measure every limit and take the best: what noise costs even then."""
    del start_w
    best = chosen_point(points, asked)
    if best is None or asked.energy_weight == 0:
        return len(points) - 1, 0
    return points.index(best), len(points)


HEADER = (
    "| | mean loss, % | within 1 %, % | worst, % | probes | of a sweep | bound broken by > 1 %, % |"
    " second batch size: probes | loss, % |\n" + "|---" * 9 + "|"
)


def row(label: str, first: Sequence[Walk], second: Sequence[Walk]) -> str:
    """Return a row of the table."""
    losses = [walk.loss for walk in first]
    limited = [walk.breach for walk in first if np.isfinite(walk.breach) and walk.breach > -1]
    broken = f"{share(breach > CLOSE for breach in limited):.2f}" if limited else ""
    cells = [
        f"{100 * statistics.fmean(losses):.3f}",
        f"{share(loss <= CLOSE for loss in losses):.2f}",
        f"{100 * max(losses):.2f}",
        f"{statistics.fmean(walk.probes for walk in first):.2f}",
        f"{statistics.fmean(walk.probes / walk.sweep for walk in first):.3f}",
        broken,
        f"{statistics.fmean(walk.probes for walk in second):.2f}" if second else "",
        f"{100 * statistics.fmean(walk.loss for walk in second):.3f}" if second else "",
    ]
    return f"| {label} | {' | '.join(cells)} |"


def share(values: Iterable[bool]) -> float:
    """Return how many are true, in percent."""
    return 100 * statistics.fmean(map(float, values))


def table(title: str, results: Mapping[str, Scores]) -> None:
    """Print one row per objective, one per GPU where there are several, and one for all."""
    print(f"\n### {title}\n\n{HEADER}")
    for name, scores in results.items():
        print(row(name, [walk for _, walk in scores.first], [walk for _, walk in scores.second]))
    found = sorted({gpu for scores in results.values() for gpu, _ in scores.first})
    for gpu in found if len(found) > 1 else ():
        print(row(f"{gpu}, all objectives", *pooled(results, gpu=gpu)))
    print(row("all objectives", *pooled(results)))
    print(row("all that are probed for", *pooled(results, is_probed)))


def is_probed(name: str) -> bool:
    """Whether an objective needs a probe at all."""
    return name not in {"time", "cost, eta_knob 0"}


def pooled(
    results: Mapping[str, Scores],
    counts: Callable[[str], bool] = bool,
    gpu: str | None = None,
) -> tuple[list[Walk], list[Walk]]:
    """Return all first and all second walks of some objectives, on one GPU or on all."""
    kept = [scores for name, scores in results.items() if counts(name)]
    first = [walk for scores in kept for model, walk in scores.first if gpu in {None, model}]
    second = [walk for scores in kept for model, walk in scores.second if gpu in {None, model}]
    return first, second


def targets(results: Mapping[float, Mapping[str, Scores]]) -> list[tuple[str, float, float]]:
    """Return what is to be met: what it is, the figure, and its bound; all at most the bound."""
    clean, _ = pooled(results[0.0])
    noisy, _ = pooled(results[0.005])
    limited, _ = pooled(results[0.005], lambda name: name.startswith("max_slowdown"))
    every = [pooled(by_name) for by_name in results.values()]
    probed = [pooled(by_name, is_probed) for by_name in results.values()]
    sweeps = [np.mean([walk.probes / walk.sweep for walk in first]) for first, _ in every]
    seconds = [np.mean([walk.probes for walk in second]) for _, second in every]
    loss = statistics.fmean
    return [
        ("mean loss without noise, %", 100 * loss(walk.loss for walk in clean), 0.02),
        ("mean loss at 0.5 %, %", 100 * loss(walk.loss for walk in noisy), 0.1),
        ("over 1 % without noise, % of cases", share(walk.loss > CLOSE for walk in clean), 2),
        ("over 1 % at 0.5 %, % of cases", share(walk.loss > CLOSE for walk in noisy), 2),
        ("worst loss without noise, %", 100 * max(walk.loss for walk in clean), 2.5),
        ("probes as a share of a sweep, worst of the noises", float(max(sweeps)), 0.42),
        (
            "the same, of the objectives that are probed for",
            max(
                float(np.mean([walk.probes / walk.sweep for walk in first])) for first, _ in probed
            ),
            0.42,
        ),
        (
            "bound broken by > 1 % at 0.5 %, % of max_slowdown",
            share(walk.breach > CLOSE for walk in limited),
            1,
        ),
        ("probes of a second batch size, worst of the noises", float(max(seconds)), 2.5),
        (
            "the same, of the objectives that are probed for, without noise",
            statistics.fmean(walk.probes for walk in probed[0][1]),
            2.5,
        ),
    ]


def main() -> None:
    """Print the tables, and which target is met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace-dir", type=Path, default=None)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--made-up", type=int, default=200, help="profiles of each family")
    options = parser.parse_args()
    print(f"{describe_machine()}; {options.seeds} seeds")
    if options.trace_dir:
        cases = load_cases(options.trace_dir)
        results: dict[float, dict[str, Scores]] = {}
        for noise in NOISES:
            results[noise] = {
                name: replay(cases, name, noise, options.seeds) for name in OBJECTIVES
            }
            title = f"{len(cases)} recorded profiles, probes with {100 * noise:g} % noise"
            table(title, results[noise])
        swept = {name: replay(cases, name, 0.005, options.seeds, sweep) for name in OBJECTIVES}
        table("For comparison: a full sweep at 0.5 % noise", swept)
        print("\n### Targets, over all objectives where nothing else is said\n")
        print("| | figure | at most | |\n|---|---|---|---|")
        for what, figure, most in targets(results):
            print(f"| {what} | {figure:.3g} | {most:g} | {'met' if figure <= most else 'MISSED'} |")
    rng = np.random.default_rng(0)
    for family in FAMILIES:
        cases = [make_up(family, rng) for _ in range(options.made_up)]
        cases = [case._replace(job=(f"{number}",)) for number, case in enumerate(cases)]
        for noise in NOISES[:2]:
            made_up = {name: replay(cases, name, noise, 1) for name in OBJECTIVES}
            table(f"Made up: {family}, 6 to 15 limits, {100 * noise:g} % noise", made_up)


if __name__ == "__main__":
    main()
