"""Sums up a study by workload and policy."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from zeusrun.simulate.study import Episode

BASELINE = "zeus"  # the published policy; others are compared with it

Spread: TypeAlias = "dict[str, Any]"
"""``mean``, ``median``, ``p5`` and ``p95`` over seeds: a number, or a list by recurrence."""


@dataclass(frozen=True)
class Ratios:
    """Total cost, energy and time over those of a reference; ``None`` if that is unknown."""

    cost: float | None = None
    energy: float | None = None
    time: float | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One workload under one policy, over all seeds; the fields are those of the JSON.

    A best run is the expected cost of the best batch size at its best power limit.
    """

    workload: str
    policy: str
    seeds: int
    recurrences: int  # of each seed
    cost_j: Spread  # of all recurrences
    energy_j: Spread
    time_s: Spread
    regret_j: Spread  # cost over that of best runs
    regret_best_runs: Spread  # in best runs
    cumulative_cost_j: Spread  # by recurrence
    cumulative_regret_j: Spread
    cumulative_regret_best_runs: Spread
    never_j: float | None  # of the default at its highest limit; None if it misses the target
    best_j: float  # of best runs
    best_batch_sizes: tuple[int, ...]  # at the first recurrence; a family has several
    to_never: Ratios  # against the default at its highest limit
    to_best: Ratios  # against best runs
    to_zeus: Ratios  # against policy zeus: means over seeds, in best runs
    zeus_regret_best_runs: float | None  # mean over seeds; None if zeus was not simulated
    regret_to_zeus: float | None  # None if the regret of zeus is unknown or not above 0
    batch_sizes: Mapping[int, float]  # share of the attempts
    attempts: float  # per recurrence
    looks: float  # trials ended by their speed check, per recurrence
    failed_share: float  # of the attempts
    unreached: int  # recurrences of all seeds in which no attempt reached the target


def summarise(episodes: Sequence[Episode], policies: Sequence[str]) -> list[Summary]:
    """Sum up some policies of a study, and compare them with ``zeus`` if it was simulated."""
    groups: defaultdict[tuple[str, str], list[Episode]] = defaultdict(list)
    for episode in episodes:
        groups[episode.name, episode.policy].append(episode)
    return [
        _summary(own, groups.get((workload, BASELINE), []))
        for workload in dict.fromkeys(workload for workload, _ in groups)
        for (name, policy), own in groups.items()
        if name == workload and policy in policies
    ]


def pooled_regret(summaries: Sequence[Summary], policy: str) -> float | None:
    """Return the regret of a policy over all workloads, in best runs, over that of ``zeus``."""
    pairs = [
        (each.regret_best_runs["mean"], each.zeus_regret_best_runs)
        for each in summaries
        if each.policy == policy and each.zeus_regret_best_runs is not None
    ]
    of_zeus = sum(zeus for _, zeus in pairs)
    return sum(own for own, _ in pairs) / of_zeus if of_zeus > 0 else None


def _summary(own: Sequence[Episode], zeus: Sequence[Episode]) -> Summary:
    spent = np.array([each.spent.sum(axis=0) for each in own])
    costs_j = np.array([each.spent[:, 0] for each in own]).cumsum(axis=1)
    regrets_j = np.array([each.regret_j for each in own]).cumsum(axis=1)
    regrets = np.array([_regrets(each) for each in own])
    never_j = float(np.mean([each.never[:, 0].sum() for each in own]))
    arms = sum((Counter(each.arms) for each in own), Counter[int]())
    attempts, recurrences = sum(arms.values()), len(own[0].reached)
    of_zeus = float(np.mean([_regrets(each)[-1] for each in zeus])) if zeus else None
    in_bests = [_in_bests(each) for each in own]
    to_zeus = Ratios()
    if zeus:
        theirs = np.mean([_in_bests(each) for each in zeus], axis=0)
        to_zeus = _ratios([np.mean(in_bests, axis=0) / theirs])
    return Summary(
        workload=own[0].name,
        policy=own[0].policy,
        seeds=len(own),
        recurrences=recurrences,
        cost_j=_spread(spent[:, 0]),
        energy_j=_spread(spent[:, 1]),
        time_s=_spread(spent[:, 2]),
        regret_j=_spread(regrets_j[:, -1]),
        regret_best_runs=_spread(regrets[:, -1]),
        cumulative_cost_j=_spread(costs_j),
        cumulative_regret_j=_spread(regrets_j),
        cumulative_regret_best_runs=_spread(regrets),
        never_j=never_j if np.isfinite(never_j) else None,
        best_j=float(np.mean([each.best[:, 0].sum() for each in own])),
        best_batch_sizes=tuple(sorted({each.best_arm for each in own})),
        to_never=_ratios([each.spent.sum(0) / each.never.sum(0) for each in own]),
        to_best=_ratios(in_bests),
        to_zeus=to_zeus,
        zeus_regret_best_runs=of_zeus,
        regret_to_zeus=float(regrets[:, -1].mean() / of_zeus) if of_zeus and of_zeus > 0 else None,
        batch_sizes={arm: arms[arm] / attempts for arm in sorted(arms)},
        attempts=attempts / len(own) / recurrences,
        looks=sum(each.speed_checks for each in own) / len(own) / recurrences,
        failed_share=sum(each.failed for each in own) / attempts,
        unreached=sum(int((~each.reached).sum()) for each in own),
    )


def _regrets(episode: Episode) -> NDArray[np.float64]:
    """Cumulative regret in best runs, by recurrence."""
    regrets: NDArray[np.float64] = (episode.regret_j / episode.best[:, 0]).cumsum()
    return regrets


def _in_bests(episode: Episode) -> NDArray[np.float64]:
    """Total cost, energy and time over those of the best batch size."""
    ratios: NDArray[np.float64] = episode.spent.sum(axis=0) / episode.best.sum(axis=0)
    return ratios


def _ratios(by_seed: Sequence[NDArray[np.float64]]) -> Ratios:
    """Return means over seeds; unknown if the reference is infinite: it misses the target."""
    return Ratios(*np.mean(by_seed, axis=0).tolist()) if np.all(by_seed) else Ratios()


def _spread(values: NDArray[np.float64]) -> Spread:
    """Return mean and quantiles over the first axis."""
    low, median, high = np.quantile(values, (0.05, 0.5, 0.95), axis=0)
    named = {"mean": values.mean(axis=0), "median": median, "p5": low, "p95": high}
    return {name: value.tolist() for name, value in named.items()}
