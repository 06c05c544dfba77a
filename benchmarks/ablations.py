"""What each part of policy ``auto`` is worth: its regret with the part taken out or changed.

    python benchmarks/ablations.py [--trace-dir DIR] [--seeds 20] [NAME …]

One core; figures are mean regrets of 50 recurrences over those of ``zeus``: pooled over all
recorded jobs of both GPUs, the worst of these jobs, and the ratio of medians of each made-up
family.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
from regret import HORIZONS, regrets, to_never
from synthetic import FAMILIES
from timing import describe_machine

from zeusrun.simulate.study import Scenario, StudySettings, build_scenarios, run_study

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.simulate.study import Episode

VARIANTS: Mapping[str, Mapping[str, float]] = {
    "as it is": {},
    "no smooth rest of the kernel": {"auto.beliefs.BEND_SD": 0.0},
    "no straight part of the kernel": {"auto.beliefs.SLOPE_SD": 0.0},
    "nothing of its own for an arm": {"auto.beliefs.OWN_SD": 0.0},
    "failures are no cliffs": {"auto.beliefs.CLIFF_SD": 0.0},
    "no speed law from power": {"auto.beliefs.OVERHEAD": 0.0},
    "no speed checks": {"auto.policy.SPEED_CHECK_S": float("inf")},
    "after any failure, only the proven": {"auto.policy.LOST_SHARE": 0.0},
    "no learning-curve stop": {"auto.policy.PACES": 0},
    "others bounded by cost_factor alone": {"auto.beliefs.BOUND_SDS": 99.0},
    "bound at 3 sd": {"auto.beliefs.BOUND_SDS": 3.0},
    "horizon 10": {"auto.beliefs.HORIZON": 10},
    "horizon 40": {"auto.beliefs.HORIZON": 40},
    "a try may save next to nothing": {"auto.policy.LEAST_SAVING": 0.0},
    "no detection of drift": {"auto.drift.UNANNOUNCED": 0.0},
}


def study(scenarios: list[Scenario], policy: str, seeds: int) -> dict[str, list[Episode]]:
    """Simulate in this process, where the constants are changed."""
    settings = StudySettings(recurrences=HORIZONS[1], eta_knob=0.5, cost_factor=2.0, in_flight=1)
    by_name: defaultdict[str, list[Episode]] = defaultdict(list)
    for episode in run_study(scenarios, [policy], range(seeds), settings):
        by_name[episode.name].append(episode)
    return by_name


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("variants", nargs="*", metavar="NAME", help="all if left out")
    parser.add_argument("--trace-dir", type=Path, help="where the traces are")
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    suites = {"made up": [Scenario(name, make) for name, make in FAMILIES.items()]}
    for gpu in ("v100", "p100") if given.trace_dir else ():
        suites[gpu] = build_scenarios([], given.trace_dir, gpu)
    zeus = {suite: study(scenarios, "zeus", given.seeds) for suite, scenarios in suites.items()}
    print(f"{describe_machine()}; {given.seeds} seeds")
    print("| | pooled | worst | " + " | ".join(FAMILIES) + " | drift ÷ never optimising |")
    print("|---|---|---|" + "---|" * (len(FAMILIES) + 1))
    for name in given.variants or VARIANTS:
        with ExitStack() as patches:
            for constant, value in VARIANTS[name].items():
                patches.enter_context(patch(f"zeusrun.bandit.{constant}", value))
            auto = {
                suite: study(scenarios, "auto", given.seeds) for suite, scenarios in suites.items()
            }
        means = [
            (regrets(own, 50).mean(), regrets(zeus[suite][job], 50).mean())
            for suite in suites
            if suite != "made up"
            for job, own in auto[suite].items()
        ]
        ratios = [ours / theirs for ours, theirs in means]
        recorded = ["", ""]
        if means:
            pooled = sum(ours for ours, _ in means) / sum(theirs for _, theirs in means)
            recorded = [f"{pooled:.3f}", f"{max(ratios):.2f}"]
        made_up = [
            np.median(regrets(own, 50)) / np.median(regrets(zeus["made up"][family], 50))
            for family, own in auto["made up"].items()
        ]
        never = to_never(auto["made up"]["drift"], 50).mean()
        cells = [name, *recorded, *(f"{ratio:.2f}" for ratio in made_up), f"{never:.2f}"]
        print("| " + " | ".join(cells) + " |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
