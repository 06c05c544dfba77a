"""How good forecasts are: ``simulate JOB`` on synthetic jobs of which everything is known.

A job runs under ``auto`` with eta_knob 0.5 for some recurrences. From that history alone, what it
takes under another eta_knob is forecast, and compared with the job itself after 30 more.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import replace

import numpy as np
from synthetic import FAMILIES

from zeusrun.bandit.registry import create_policy
from zeusrun.errors import UsageError
from zeusrun.simulate.engine import expected
from zeusrun.simulate.own_job import learn
from zeusrun.simulate.replay import ask_about, forecast, replay
from zeusrun.trial import TrialStatus

AHEAD, LAST = 30, 10  # recurrences; the last ones show which batch size is in use
CASES = [(name, n, knob) for name in ("law", "bimodal") for n in (15, 40) for knob in (0.5, 1.0)]


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--limits", action="store_true", help="with all power limits, not one")
    options = parser.parse_args()
    print("| family | recurrences so far | eta_knob | error of the cost, median (p90) |", end="")
    print(" truth within nine of ten | batch size right | refused |")
    print("|---|---|---|---|---|---|---|")
    for family, runs, knob in CASES:
        found = [
            judge(family, seed, runs, knob, limits=options.limits) for seed in range(options.jobs)
        ]
        known = [each for each in found if each is not None]
        errors, within, right = zip(*known, strict=True)
        p90 = float(np.quantile(errors, 0.9))
        print(
            f"| {family} | {runs} | {knob:g} | {statistics.median(errors):.1%} ({p90:.1%}) | "
            f"{np.mean(within):.0%} | {np.mean(right):.0%} | {len(found) - len(known)} |",
            flush=True,
        )


def judge(
    family: str, seed: int, runs: int, knob: float, *, limits: bool
) -> tuple[float, bool, bool] | None:
    """Return the error of a forecast, whether its range and its batch size are right."""
    job, policy = FAMILIES[family](np.random.default_rng([seed, 77])), create_policy("auto")
    if not limits:
        top = {arm: max(rates) for arm, rates in job.rates.items()}
        job = replace(job, rates={arm: {w: job.rates[arm][w]} for arm, w in top.items()})
    problem = ask_about(job, 0.5, 2.0)
    history = [each.trial for each in replay(job, policy, problem, runs, seed)]
    problem = replace(problem, eta_knob=knob, recurrence=runs + 1)
    try:
        model = learn(job.name, problem, history)
    except UsageError:
        return None
    told = forecast(model, policy, recurrences=AHEAD, seeds=range(10), attempts=5)
    after = replay(job, policy, problem, AHEAD, 1000 + seed, before=model.runs)
    reached = [each.trial for each in after if each.trial.status is TrialStatus.REACHED]
    arm = statistics.mode(trial.global_batch_size for trial in reached[-LAST:])
    true_j = expected(job, arm, knob, 1).cost_j
    low_j, told_j, high_j = np.quantile(told.cost_j, (0.05, 0.5, 0.95))
    right = statistics.mode(told.batch_sizes) == arm
    return abs(math.log(told_j / true_j)), bool(low_j <= 1.01 * true_j <= 1.02 * high_j), right


if __name__ == "__main__":
    main()
