"""How often a claimed saving is true, in simulated jobs whose savings are known.

    python benchmarks/savings_truth.py [--seeds 100] [--control 10] [--forecasts]

Every job has three batch sizes under policy ``auto``, and is looked at after each recurrence from
the fifth on. What is claimed is what ``zeusrun history`` says of the batch size in use: a saving is
claimed if its range excludes 0. In jobs without any difference, a claim beyond 5 % is false. The
other jobs save a share with the largest batch size, and lose as much with the smallest.

``--forecasts`` judges ``zeusrun simulate JOB --set ...`` instead: from the history of a job alone,
it is forecast with other candidates or another ``eta_knob``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from timing import describe_machine

from zeusrun.analysis.savings import find_savings
from zeusrun.bandit.baselines import WalkingPolicy
from zeusrun.bandit.registry import create_policy
from zeusrun.errors import UsageError
from zeusrun.simulate.engine import LearningCurve, Rate, SimulatedJob
from zeusrun.simulate.own_job import learn
from zeusrun.simulate.replay import ask_about, forecast, replay
from zeusrun.trial import Decision, Stage
from zeusrun.view.simulate import saved_share

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zeusrun.analysis.estimates import Estimate
    from zeusrun.bandit.problem import Observation, Problem

ARMS, DEFAULT, EPOCHS, CURVES = (32, 64, 128), 64, 60, 200
FIRST_LOOK = 5
CLAIM = 0.05
KNOB = 0.5  # eta_knob of the jobs
SDS = (0.14, 0.25)


class Cell(NamedTuple):
    """One simulated job; everything drawn in it depends on its seed."""

    sd: float  # of log epochs
    saving: float  # share that the largest batch size saves
    drift: bool  # whether new data change the epochs of all batch sizes
    recurrences: int
    control: int | None
    seed: int


class Look(NamedTuple):
    """What is claimed after a recurrence, and the truth."""

    share: float
    low: float
    high: float
    truth: float

    @property
    def claimed(self) -> bool:
        """Whether a saving or a loss beyond ``CLAIM`` is claimed."""
        return (self.low > 0 or self.high < 0) and abs(self.share) > CLAIM


def true_saving(cell: Cell, arm: int) -> float:
    """Return what a batch size truly saves, as a share of the default's cost."""
    return {32: 1 - 1 / (1 - cell.saving), 64: 0.0, 128: cell.saving}[arm]


def build_job(cell: Cell) -> SimulatedJob:
    """Build the job of a cell."""
    rng = np.random.default_rng([cell.seed, 1])

    def draw_curves(factor: float) -> dict[int, list[LearningCurve]]:
        curves = {}
        for arm in ARMS:
            usual = EPOCHS * factor * (1 - true_saving(cell, arm))
            epochs = np.maximum(3, np.round(usual * rng.lognormal(0, cell.sd, CURVES)))
            curves[arm] = [
                LearningCurve(n, ((1, 0.3), (n // 2 + 1, 0.7), (n, 1.0)))
                for n in epochs.astype(int).tolist()
            ]
        return curves

    eras = [(1, draw_curves(1.0))]
    if cell.drift:
        since = int(rng.integers(FIRST_LOOK, 60))
        eras.append((since, draw_curves(float(rng.choice([0.6, 1.6])))))
    return SimulatedJob(
        name="truth",
        default=DEFAULT,
        mode="max",
        target=1.0,
        max_epochs=2000,
        max_power_w=300.0,
        rates={arm: {300.0: Rate(1000.0, 200.0)} for arm in ARMS},
        eras=eras,
    )


def look(cell: Cell) -> list[Look | None]:
    """Look at a job after each recurrence; ``None``: nothing can be compared."""
    job = build_job(cell)
    policy = create_policy("auto")
    problem = replace(ask_about(job, KNOB, 2.0), control=cell.control)
    played = replay(job, policy, problem, cell.recurrences, cell.seed)
    trials = [each.trial for each in played]
    looks: list[Look | None] = []
    for count in range(FIRST_LOOK, cell.recurrences + 1):
        savings = find_savings([trial for trial in trials if trial.recurrence <= count])
        if savings.share is None or savings.in_use is None:
            looks.append(None)
        else:
            looks.append(Look(*vars(savings.share).values(), true_saving(cell, savings.in_use)))
    return looks


def describe(cells: Sequence[Cell], found: Sequence[list[Look | None]]) -> Iterator[str]:
    """Yield the cells of a row: shares of jobs with claims, and of looks that are right."""
    claims = [[each is not None and each.claimed for each in own] for own in found]
    by_look = [statistics.fmean(each) for each in zip(*claims, strict=True)]
    yield f"{statistics.fmean(by_look):.1%}, {max(by_look):.0%}"
    yield f"{statistics.fmean(map(any, claims)):.0%}"
    known = [each for own in found for each in own if each is not None]
    right = [each.low <= each.truth <= each.high for each in known]
    yield f"{statistics.fmean(right):.0%}" if right else "none"
    saving = [[each is not None and each.claimed and each.share > 0 for each in o] for o in found]
    for count in (8, 20, cells[0].recurrences):
        yield f"{statistics.fmean(any(own[: count - FIRST_LOOK + 1]) for own in saving):.0%}"


class Turns(WalkingPolicy):
    """All batch sizes in turn."""

    name = "turns"

    def choose(
        self, problem: Problem, runs: Sequence[Observation], rng: np.random.Generator
    ) -> Decision:
        """Choose the next one."""
        del runs, rng
        arm = problem.candidates[problem.recurrence % len(problem.candidates)]
        return Decision(arm, Stage.EXPLOIT, "its turn", None, None)


class Question(NamedTuple):
    """What a forecast is asked: a job with three batch sizes, and a change of it."""

    change: str
    saving: float  # as in ``Cell``
    today: tuple[int, ...]
    changed: tuple[int, ...]
    truth: float  # share of energy that the change saves
    eta_knob: float = 0.5  # the changed one


# In all questions but the first, each batch size has 13 runs.
QUESTIONS = (
    Question("removes 32", 0.0, ARMS, (64, 128), 0.0),
    Question("adds the known 128", 0.3, (32, 64), ARMS, 0.3),
    Question("removes the known 128", 0.3, ARMS, (32, 64), 1 - 1 / 0.7),
    Question("sets eta_knob=1", 0.3, ARMS, ARMS, 1 - 140 / (0.7 * 240), eta_knob=1.0),
)


def ask(question: Question, sd: float, seed: int) -> tuple[Estimate, Estimate] | None:
    """Return what a changed run saves by a forecast from a job's history, of cost and energy.

    ``None``: the forecast is refused.
    """
    job = build_job(Cell(sd, question.saving, False, 0, None, seed))
    if question.eta_knob != KNOB:  # the batch size of the fewest epochs draws more power
        watts = {32: 140.0, 64: 140.0, 128: 240.0}
        job = replace(job, rates={arm: {300.0: Rate(1000.0, watts[arm])} for arm in ARMS})
    runs, policy = (39 if question.saving else 15 + 5 * (seed % 4)), create_policy("auto")
    problem = replace(ask_about(job, KNOB, 2.0), candidates=ARMS)
    before = Turns() if question.saving else policy
    trials = [each.trial for each in replay(job, before, problem, runs, seed)]
    told = []
    for candidates, knob in ((question.today, KNOB), (question.changed, question.eta_knob)):
        asked = replace(problem, candidates=candidates, eta_knob=knob, recurrence=runs + 1)
        try:
            model = learn(job.name, asked, trials)
        except UsageError:
            return None
        told.append(forecast(model, policy, recurrences=50, seeds=range(20), attempts=5))
    today, changed = told
    return (
        saved_share(today.cost_j, changed.cost_j),
        saved_share(today.energy_j, changed.energy_j),
    )


def print_forecasts(pool: ProcessPoolExecutor, seeds: int) -> None:
    """Print a table in Markdown of what forecasts claim."""
    print("| change | sd | truly saves | told of the energy: median (lowest to highest) |", end="")
    print(" of the cost | usual range | shown | range holds | refused |")
    print("|---|---|---|---|---|---|---|---|---|")
    for question, sd in itertools.product(QUESTIONS, SDS):
        found = pool.map(ask, [question] * seeds, [sd] * seeds, range(seeds))
        costs, energies = zip(*(each for each in found if each is not None), strict=True)
        told, cost = ([each.value for each in own] for own in (energies, costs))
        row = [question.change, f"{sd:.2f}", f"{question.truth:.0%}"]
        row.append(f"{statistics.median(told):.1%} ({min(told):.0%} to {max(told):.0%})")
        same_knob = question.eta_knob == KNOB
        row.append(f"{statistics.median(cost):.1%}" if same_knob else "none")
        ends = [
            statistics.median(getattr(each, end) for each in energies) for end in ("low", "high")
        ]
        row.append(" to ".join(f"{end:.0%}" for end in ends))
        row.append(f"{statistics.fmean(each.is_shown for each in energies):.0%}")
        right = [each.low <= question.truth <= each.high for each in energies]
        row += [f"{statistics.fmean(right):.0%}", str(seeds - len(right))]
        print(f"| {' | '.join(row)} |", flush=True)


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--control", type=int, help="as policy.control in a job file")
    parser.add_argument("--forecasts", action="store_true", help="judge forecasts instead")
    options = parser.parse_args()
    if options.forecasts:
        print(f"{describe_machine()}; {options.seeds} seeds\n")
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            print_forecasts(pool, options.seeds)
        return
    print(f"{describe_machine()}; {options.seeds} seeds; control: {options.control}\n")
    print("| saving | sd | drift | claimed at a look: mean, most | ever | range holds |", end="")
    print(" saving claimed by 8 | by 20 | by the last |\n|---|---|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for saving in (0.0, 0.1, 0.3, 0.6):
            for sd in SDS:
                for drift in (False, True) if not saving else (False,):
                    recurrences = 40 if saving else 100
                    cells = [
                        Cell(sd, saving, drift, recurrences, options.control, seed)
                        for seed in range(options.seeds)
                    ]
                    found = list(pool.map(look, cells, chunksize=2))
                    row = [f"{saving:.0%}", f"{sd:.2f}", "yes" if drift else "no"]
                    print(f"| {' | '.join([*row, *describe(cells, found)])} |", flush=True)


if __name__ == "__main__":
    main()
