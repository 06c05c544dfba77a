"""What each constant and part of policy ``auto`` is worth: the regret with it changed.

    python benchmarks/ablations.py --trace-dir DIR [--seeds 20] [--only WORD ...] [--power]

The jobs are those of ``held_out.py`` and ``synthetic.py``, 50 recurrences each. A variant sees the
same runs as the policy as it is, so the difference is one of pairs: for the recorded tables, of the
pooled regret ÷ that of ``zeus``; for a made-up family, in best runs, where it is larger than two
standard errors.

With ``--power``, the constants of the walk over power limits instead, on the profiles of
``power_limits.py`` with 0.5 % noise.
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
from power_limits import FAMILIES as PROFILES
from power_limits import OBJECTIVES, Case, Walk, is_probed, load_cases, make_up, pooled, replay
from regret import HORIZONS, regrets
from synthetic import FAMILIES
from timing import describe_machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

HORIZON = HORIZONS[1]
SUITES = ("smoothed tables", "held-out tables")
_MODULES = (
    *(
        "auto.beliefs",
        "auto.drift",
        "auto.evidence",
        "auto.luck",
        "auto.policy",
        "problem",
        "power",
    ),
)
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
    "OWN_MISSES": (5.0, 80.0),
    "TOO_MANY": (2, 10),
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
# The same of the walk over power limits.
POWER_CHANGES: Mapping[str, tuple[Any, ...]] = {
    "_STARTS": ((1.0,) * 5, (0.7,) * 5),
    "DOWN_FIRST": (0.0, 2.0),
    "CLOSE": (0.0, 0.02),
    "BURSTY": (0.0, 1.0),
    "EQUAL": (0.0, 0.005),
    "ALIKE": (0.0, 0.05),
    "UNBOUND": (0.0, 0.9),
    "CURVE": (1.0, 2.0),
    "DRAW": (0.3, 0.8),
    "LEAST_SLOPE": (0.01, 0.2),
    "FLAT": (0.0, 0.01),
    "RISE": (0.0, 0.1),
    "STEEP": (0.4, 2.0),
}
NOISE, MADE_UP = 0.005, 100


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


def _is_one(name: str, words: Sequence[str]) -> bool:
    return any(word in name for word in words)


def walk_limits(
    suites: Mapping[str, list[Case]], seeds: int, *changed: object
) -> dict[str, list[Walk]]:
    """Return the walks over power limits, of the objectives that need any, by suite."""
    if changed:
        change(str(changed[0]), changed[1])
    return {
        suite: pooled(
            {each: replay(cases, each, NOISE, seeds) for each in OBJECTIVES if is_probed(each)}
        )[0]
        for suite, cases in suites.items()
    }


def report_power(directory: Path, seeds: int, only: Sequence[str]) -> None:
    """Print a table of the constants of the walk over power limits."""
    rng = np.random.default_rng(0)
    made_up = [make_up(family, rng) for family in PROFILES for _ in range(MADE_UP)]
    suites = {
        "recorded": load_cases(directory),
        "made up": [case._replace(job=(f"{n}",)) for n, case in enumerate(made_up)],
    }
    changes = [(name, v) for name, own in POWER_CHANGES.items() if _is_one(name, only) for v in own]
    heads = [f"{suite}: {figure}" for suite in suites for figure in ("loss, %", "worst", "probes")]
    print(f"| changed | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}", flush=True)
    with ProcessPoolExecutor(os.cpu_count(), max_tasks_per_child=1) as pool:
        found = [pool.submit(walk_limits, suites, seeds, *each) for each in [(), *changes]]
        for label, walks in zip([("as it is",), *changes], found, strict=True):
            cells = [
                f"{100 * np.mean([each.loss for each in own]):.3f}"
                f" | {100 * max(each.loss for each in own):.1f}"
                f" | {np.mean([each.probes for each in own]):.2f}"
                for own in walks.result().values()
            ]
            name = f"`{label[0]}` = {label[1]}" if len(label) > 1 else label[0]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trace-dir", type=Path, required=True, help="where the traces are")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=[""], help="constants with it in their names")
    parser.add_argument("--power", action="store_true", help="those of power limits instead")
    given = parser.parse_args()
    directory, seeds = given.trace_dir, given.seeds
    print(f"{describe_machine()}; {seeds} seeds, {HORIZON} recurrences\n", flush=True)
    if given.power:
        report_power(directory, seeds, given.only)
        return
    zeus, usual = (simulate(directory, seeds, policy) for policy in ("zeus", "auto"))
    for suite in SUITES:
        of_zeus = sum(each.mean() for (own, _), (each, _) in zeus.items() if own == suite)
        own = sum(each for (s, _), (each, _) in usual.items() if s == suite) / of_zeus
        print(f"{suite}, as it is: {own.mean():.3f} ± {error(own):.3f} of zeus")
    print(f"recurrences without a model, as it is: {sum(count for _, count in usual.values())}\n")
    print("| changed | smoothed tables | held-out tables | families, best runs | no model |")
    print("|---|---|---|---|---|", flush=True)
    for name, values in CHANGES.items():
        for value in values if _is_one(name, given.only) else ():
            now = simulate(directory, seeds, "auto", name, value)
            row = " | ".join(described(usual, now, zeus))
            print(f"| `{name}` = {value} | {row} |", flush=True)


if __name__ == "__main__":
    main()
