"""What each constant and part of policy ``auto`` is worth: the regret with it changed.

    python benchmarks/ablations.py --trace-dir DIR [--seeds 20] [--only WORD]

The jobs are those of ``held_out.py`` and ``synthetic.py``, 50 recurrences each. A variant sees the
same runs as the policy as it is, so the difference is one of pairs: for the recorded tables, of the
pooled regret ÷ that of ``zeus``; for a made-up family, in best runs, where it is larger than two
standard errors.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from held_out import HELD_OUT, error, play, tables
from regret import HORIZONS, regrets
from synthetic import FAMILIES
from timing import describe_machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

HORIZON = HORIZONS[1]
SUITES = ("smoothed tables", "held-out tables")
_MODULES = ("auto.beliefs", "auto.drift", "auto.evidence", "auto.luck", "auto.policy", "problem")
# Other values of each constant. Of a function, the name of the one that takes its place.
CHANGES: Mapping[str, tuple[Any, ...]] = {
    "SLOPE_SD": (0.0, 0.3),
    "BEND_SD": (0.0, 1.0),
    "BEND_DOUBLINGS": (1.0, 4.0),
    "OWN_SD": (0.0, 0.06),
    "CLIFF_SD": (0.0, 0.6),
    "OVERHEAD": (0.0, 0.5),
    "BOUND_SDS": (1.5, 3.0),
    "HORIZON": (10, 40),
    "LEAST_SAVING": (0.0, 0.1),
    "SPEED_CHECK_S": (float("inf"),),
    "LOST_SHARE": (0.0, 1.0),
    "PACES": (0, 2),
    "_likeliest": ("_proven",),
    "MISSES": (0.01, 0.1),
    "MISSES_WEIGHT": (0.5, 5.0),
    "OWN_MISSES": (5.0, 80.0),
    "TOO_MANY": (1, 4),
    "BAD_LUCK": (0.0001, 0.3),
    "RUN_SD": (0.07, 0.28),
    "RUN_SD_WEIGHT": (1.5, 6.0),
    "WIDEST_SDS": (2.0, 4.0),
    "STEADY_SD": (0.005, 0.02),
    "NOISY_SD": (0.1, 0.4),
    "NOISY_SHARE": (0.05, 0.1, 0.3),
    "DIFFERENCE_WEIGHT": (1.0,),
    "OUTLIER": (10.0, 1e9),
    "SPEED_RUNS": (1, 5),
    "UNANNOUNCED": (0.0, 0.001, 0.01),
    "SHIFT_SD": (0.25, 1.0),
    "ACCIDENT": (3.0, 1e9),
    "_FARTHEST_SDS": (3.0, 8.0),
    "_BEFORE": ((1_000_000,),),
    "CERTAIN": (0.5, 0.95),
    "DOUBTED": (0.3, 0.7),
    "LEAST": (0.01, 0.2),
}


def change(name: str, value: object) -> None:
    """Change a constant, or a function, in every module that has it."""
    for module in (import_module(f"zeusrun.bandit.{each}") for each in _MODULES):
        if hasattr(module, name):
            setattr(module, name, getattr(module, value) if isinstance(value, str) else value)


def simulate(
    directory: Path, seeds: int, policy: str, *changed: object
) -> dict[tuple[str, str], tuple[np.ndarray, int]]:
    """Return regrets by suite and job, and the recurrences without a model."""
    names = {suite: list(tables(directory, suite)) for suite in SUITES}
    names["families"] = [*HELD_OUT, *FAMILIES]
    cells = [
        (suite, name, policy, seed)
        for suite, own in names.items()
        for name in own
        for seed in range(seeds)
    ]
    initializer = {"initializer": change, "initargs": changed} if changed else {}
    work = partial(play, directory=directory, in_flight=1, recurrences=HORIZON)
    found = defaultdict(list)
    with ProcessPoolExecutor(os.cpu_count(), **initializer) as pool:
        for cell, episode in zip(cells, pool.map(work, cells, chunksize=8), strict=True):
            found[cell[:2]].append(episode)
    return {
        key: (regrets(own, HORIZON), sum(int((~each.reached).sum()) for each in own))
        for key, own in found.items()
    }


def described(
    before: Mapping[tuple[str, str], tuple[np.ndarray, int]],
    now: Mapping[tuple[str, str], tuple[np.ndarray, int]],
    zeus: Mapping[tuple[str, str], tuple[np.ndarray, int]],
) -> Iterator[str]:
    """Yield the cells of a row."""
    for suite in SUITES:
        of_zeus = sum(each.mean() for (own, _), (each, _) in zeus.items() if own == suite)
        yield _signed(_differences(before, now, suite) / of_zeus, 3)
    changed = {
        name: now[suite, name][0] - before[suite, name][0]
        for suite, name in now
        if suite == "families"
    }
    told = [f"{n} {_signed(d, 2)}" for n, d in changed.items() if abs(d.mean()) > 2 * error(d)]
    yield "; ".join(told)
    yield str(sum(count for _, count in now.values()))


def _differences(
    before: Mapping[tuple[str, str], tuple[np.ndarray, int]],
    now: Mapping[tuple[str, str], tuple[np.ndarray, int]],
    suite: str,
) -> np.ndarray:
    pairs: Iterable[np.ndarray] = (now[key][0] - before[key][0] for key in now if key[0] == suite)
    return np.sum(list(pairs), axis=0)


def _signed(values: np.ndarray, digits: int) -> str:
    return f"{values.mean():+.{digits}f} ± {error(values):.{digits}f}"


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trace-dir", type=Path, required=True, help="where the traces are")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", default="", help="constants with this in their name")
    given = parser.parse_args()
    directory, seeds = given.trace_dir, given.seeds
    print(f"{describe_machine()}; {seeds} seeds, {HORIZON} recurrences\n", flush=True)
    zeus, usual = (simulate(directory, seeds, policy) for policy in ("zeus", "auto"))
    for suite in SUITES:
        of_zeus = sum(each.mean() for (own, _), (each, _) in zeus.items() if own == suite)
        own = sum(each for (s, _), (each, _) in usual.items() if s == suite) / of_zeus
        print(f"{suite}, as it is: {own.mean():.3f} ± {error(own):.3f} of zeus")
    print(f"recurrences without a model, as it is: {sum(count for _, count in usual.values())}\n")
    print("| changed | smoothed tables | held-out tables | families, best runs | no model |")
    print("|---|---|---|---|---|", flush=True)
    for name, values in CHANGES.items():
        for value in values if given.only in name else ():
            now = simulate(directory, seeds, "auto", name, value)
            row = " | ".join(described(usual, now, zeus))
            print(f"| `{name}` = {value} | {row} |", flush=True)


if __name__ == "__main__":
    main()
