"""Makes up recurring jobs: epochs follow the critical-batch-size law, speed and power a simple GPU.

Epochs to the target grow as ``1 + batch size / critical batch size`` (McCandlish et al., "An
Empirical Model of Large-Batch Training", 2018); an epoch takes a time per step and a time per
sample; power rises with the share of time spent on samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.simulate.engine import LearningCurve, Rate, SimulatedJob, best_arm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.random import Generator

MAX_POWER_W = 300.0
IDLE_POWER_W = 60.0
LIMITS_W = (100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0, 275.0, 300.0)
CURVES = 48  # learning curves of a batch size; a run follows one at random
LEVELS = 20  # of the metric, between nothing and the target
TARGET = 1.0


@dataclass(frozen=True)
class Law:
    """The parameters of a job."""

    arms: tuple[int, ...]  # batch sizes, ascending
    default: int
    least_epochs: float  # of the smallest batch size
    critical: float  # batch size at which epochs have doubled
    hill: tuple[float, float]  # batch size and log height of a hill of epochs; below 0 a valley
    run_sd: float  # standard deviation of log epochs between runs
    converging: tuple[int, int]  # smallest and largest batch size that reaches the target at all
    epoch_s: float  # of an infinitely large batch size
    overhead: float  # batch size whose steps take as long for overhead as for samples
    max_epochs: int

    def median_epochs(self, arm: int) -> float:
        """Return the median epochs to the target."""
        centre, height = self.hill
        log_hill = height * math.exp(-0.5 * (math.log2(arm / centre) / 1.2) ** 2)
        return self.least_epochs * (1 + arm / self.critical) * math.exp(log_hill)

    def with_enough_epochs(self) -> Law:
        """Give the default two and a half times the epochs that it needs."""
        return replace(self, max_epochs=max(4, math.ceil(2.5 * self.median_epochs(self.default))))


def _log_uniform(rng: Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(math.log(low), math.log(high))))


def draw_law(rng: Generator, *, converge: bool = False) -> Law:
    """Draw a job at random; ``converge`` lets every batch size reach the target."""
    smallest = 2 ** int(rng.integers(2, 6))
    arms = tuple(smallest * 2**k for k in range(int(rng.integers(5, 12))))
    default = arms[int(rng.integers(len(arms)))]
    least = _log_uniform(rng, 3, 40)
    critical = _log_uniform(rng, arms[1], arms[-1])
    low = arms[int(rng.integers(0, 3))]
    high = arms[-1 - int(rng.integers(0, 3))]
    return Law(
        arms=arms,
        default=default,
        least_epochs=least,
        critical=critical,
        hill=(1.0, 0.0),
        run_sd=float(rng.uniform(0.02, 0.15)),
        converging=(arms[0], arms[-1]) if converge else (min(low, default), max(high, default)),
        epoch_s=_log_uniform(rng, 5, 5000),
        overhead=_log_uniform(rng, arms[0] / 4, arms[-1]),
        max_epochs=0,
    ).with_enough_epochs()


def _curves(law: Law, arm: int, rng: Generator) -> list[LearningCurve]:
    curves = []
    low, high = law.converging
    for _ in range(CURVES):
        spread = math.exp(law.run_sd * rng.standard_normal())
        # Where the metric passes the target; the run ends with that epoch.
        passed = max(0.5, law.median_epochs(arm) * spread - 0.5)
        epochs = math.ceil(passed)
        ceiling = LEVELS if low <= arm <= high else int(rng.integers(LEVELS // 3, LEVELS))
        pace: dict[int, float] = {}
        for level in range(1, ceiling + 1):
            share = -math.log(1 - level / LEVELS * (1 - math.exp(-3))) / 3
            epoch = max(1, math.ceil(passed * share - 1e-9))
            if epoch <= law.max_epochs:
                pace[epoch] = TARGET * level / LEVELS
        reached = epochs if ceiling == LEVELS and epochs <= law.max_epochs else None
        if reached:  # exact values before and after the target
            near = range(max(1, epochs - 1), epochs + 1)
            pace |= {n: TARGET * math.expm1(-3 * n / passed) / math.expm1(-3) for n in near}
        curves.append(LearningCurve(reached, tuple(sorted(pace.items()))))
    return curves


def _rates(law: Law, arm: int) -> dict[float, Rate]:
    busy = arm / (arm + law.overhead)
    wanted_w = IDLE_POWER_W + 0.92 * (MAX_POWER_W - IDLE_POWER_W) * busy
    epoch_s = law.epoch_s / busy
    rates = {}
    for limit in LIMITS_W:
        power_w = min(limit, wanted_w)
        # Speed of a clock-limited GPU: power above idle goes with the cube of the clock.
        clock = ((power_w - IDLE_POWER_W) / (wanted_w - IDLE_POWER_W)) ** (1 / 3)
        rates[limit] = Rate(epoch_s * (busy / clock + 1 - busy), power_w)
    return rates


def build_job(name: str, eras: Sequence[tuple[int, Law]], rng: Generator) -> SimulatedJob:
    """Build a job from ``(first recurrence, law)`` in order, the first one for recurrence 1.

    The laws differ in learning alone, and the largest ``max_epochs`` holds for all.
    """
    law = eras[0][1]
    max_epochs = max(each.max_epochs for _, each in eras)
    laws = [(first, replace(each, max_epochs=max_epochs)) for first, each in eras]
    return SimulatedJob(
        name=name,
        default=law.default,
        mode="max",
        target=TARGET,
        max_epochs=max_epochs,
        max_power_w=MAX_POWER_W,
        rates={arm: _rates(law, arm) for arm in law.arms},
        eras=[(n, {arm: _curves(each, arm, rng) for arm in law.arms}) for n, each in laws],
    )


def law_alone(rng: Generator) -> SimulatedJob:
    """A job of the law, with the default anywhere."""
    return build_job("law", [(1, draw_law(rng))], rng)


def default_best(rng: Generator) -> SimulatedJob:
    """The user's own batch size is the best, at an ``eta_knob`` of 0.5."""
    law = draw_law(rng)
    while True:  # another default has another max_epochs, so its runs are drawn again
        job = build_job("default-best", [(1, law)], rng)
        best = best_arm(job, 0.5, 1)
        if best == law.default:
            return job
        law = replace(law, default=best).with_enough_epochs()


def only_default(rng: Generator) -> SimulatedJob:
    """No other batch size reaches the target."""
    law = draw_law(rng)
    law = replace(law, converging=(law.default, law.default))
    return build_job("only-default", [(1, law)], rng)


def bimodal(rng: Generator) -> SimulatedJob:
    """Mostly two valleys of cost; the hill between them is where the valley of the law was."""
    law = draw_law(rng, converge=True)
    valley = best_arm(build_job("", [(1, law)], rng), 0.5, 1)
    centre = sorted((law.arms[1], valley, law.arms[-2]))[1] * 2.0 ** float(rng.uniform(-0.5, 0.5))
    law = replace(law, hill=(centre, float(rng.uniform(0.5, 1.5))))
    return build_job("bimodal", [(1, law.with_enough_epochs())], rng)


def edge(rng: Generator) -> SimulatedJob:
    """The best batch size is the smallest or the largest."""
    law = draw_law(rng, converge=True)
    small, large = float(law.arms[0]), float(law.arms[-1])
    critical, overhead = (small / 2, small / 8) if rng.integers(2) else (large * 8, large / 2)
    law = replace(law, critical=critical, overhead=overhead)
    return build_job("edge", [(1, law.with_enough_epochs())], rng)


def heavy_noise(rng: Generator) -> SimulatedJob:
    """Runs of one batch size differ by a factor."""
    law = draw_law(rng)
    law = replace(law, run_sd=float(rng.uniform(0.3, 0.5)), max_epochs=2 * law.max_epochs)
    return build_job("heavy-noise", [(1, law)], rng)


def drift(rng: Generator) -> SimulatedJob:
    """At one recurrence, other batch sizes become best, and epochs become more or fewer."""
    law = draw_law(rng, converge=True)
    level = float(rng.uniform(0.7, 1.4))
    after = replace(law, critical=law.critical * _shift(rng), least_epochs=law.least_epochs * level)
    eras = [(1, law), (int(rng.integers(12, 30)), after.with_enough_epochs())]
    return build_job("drift", eras, rng)


def creep(rng: Generator) -> SimulatedJob:
    """The data change a little every fifth recurrence, until other batch sizes are best."""
    law = draw_law(rng, converge=True)
    shift = _shift(rng)
    eras = [(n, replace(law, critical=law.critical * shift ** (n / 50))) for n in range(1, 50, 5)]
    return build_job("creep", [(n, each.with_enough_epochs()) for n, each in eras], rng)


def glide(rng: Generator) -> SimulatedJob:
    """A narrow valley moves over 3 to 6 doublings; batch sizes outside it miss the target.

    The default is the best at first. Later it may not reach the target at all.
    """
    law = draw_law(rng, converge=True)
    count = int(rng.integers(8, 12))
    arms = tuple(law.arms[0] * 2**k for k in range(count))
    way = float(rng.uniform(3, 6))
    start = float(rng.uniform(0.5, count - 1.5 - way))
    first, last = (start, start + way) if rng.integers(2) else (start + way, start)
    depth = float(rng.uniform(1.5, 5))
    law = replace(
        law,
        arms=arms,
        default=arms[round(first)],
        least_epochs=law.least_epochs * math.exp(depth),
        critical=arms[-1] * 8.0,
        overhead=_log_uniform(rng, arms[0] / 4, arms[2]),
        converging=(arms[0], arms[-1]),
    )
    eras = []
    for recurrence in range(1, 50, 4):
        centre = arms[0] * 2 ** (first + (last - first) * (recurrence - 1) / 48)
        eras.append((recurrence, replace(law, hill=(centre, -depth))))
    max_epochs = eras[0][1].with_enough_epochs().max_epochs
    return build_job("glide", [(n, replace(era, max_epochs=max_epochs)) for n, era in eras], rng)


def _shift(rng: Generator) -> float:
    """A factor of 4 to 32, up or down."""
    factor = _log_uniform(rng, 4, 32)
    return factor if rng.integers(2) else 1 / factor


FAMILIES: Mapping[str, Callable[[Generator], SimulatedJob]] = {
    "law": law_alone,
    "default-best": default_best,
    "only-default": only_default,
    "bimodal": bimodal,
    "edge": edge,
    "heavy-noise": heavy_noise,
    "drift": drift,
    "creep": creep,
    "glide": glide,
}
"""Jobs to draw at random, by name."""
