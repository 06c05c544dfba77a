"""Sums up a study: per workload and policy what was spent, and against what."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from zeusrun.simulate.study import Episode

BASELINE = "zeus"
"""The published policy, that others are compared with."""

Spread: TypeAlias = "dict[str, Any]"
"""``mean``, ``median``, ``p5`` and ``p95`` over seeds: a number, or a list by recurrence."""


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """Cost, energy and time of all recurrences over those of something else.

    ``None`` where the other thing is unknown or never reaches the target.
    """

    cost: float | None
    energy: float | None
    time: float | None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What became of one workload under one policy, over all seeds.

    Attributes:
        workload: By name.
        policy: By name.
        seeds: How many.
        recurrences: How many, of each seed.
        cost_j: Of all recurrences.
        energy_j: Of all recurrences.
        time_s: Of all recurrences, one after the other.
        regret_j: Cost over the expected cost of the best batch size.
        regret_best_runs: Regret in expected costs of a run of the best batch size.
        cumulative_cost_j: By recurrence.
        cumulative_regret_j: By recurrence.
        cumulative_regret_best_runs: By recurrence.
        never_j: Expected cost of all recurrences at the default batch size and highest limit, mean
            over seeds; ``None`` if the default never reaches the target.
        best_j: Expected cost of all recurrences at the best batch size, mean over seeds.
        best_batch_sizes: At the first recurrence; one, except in a synthetic family.
        to_never: Against never optimising, mean over seeds.
        to_best: Against the best batch size, mean over seeds.
        to_zeus: Against policy ``zeus``: means over seeds, in units of the best.
        zeus_regret_best_runs: Mean regret of policy ``zeus``, in best runs; ``None`` if nobody
            asked it.
        regret_to_zeus: Mean regret in best runs over that of policy ``zeus``; ``None`` if that is
            unknown or not above 0.
        batch_sizes: Share of attempts by batch size.
        attempts: Per recurrence.
        looks: Trials per recurrence that were only looked at.
        failed_share: Of the attempts.
        unreached: Recurrences of all seeds in which no attempt reached the target.
    """

    workload: str
    policy: str
    seeds: int
    recurrences: int
    cost_j: Spread
    energy_j: Spread
    time_s: Spread
    regret_j: Spread
    regret_best_runs: Spread
    cumulative_cost_j: Spread
    cumulative_regret_j: Spread
    cumulative_regret_best_runs: Spread
    never_j: float | None
    best_j: float
    best_batch_sizes: tuple[int, ...]
    to_never: Ratios
    to_best: Ratios
    to_zeus: Ratios
    zeus_regret_best_runs: float | None
    regret_to_zeus: float | None
    batch_sizes: Mapping[int, float]
    attempts: float
    looks: float
    failed_share: float
    unreached: int

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        record = asdict(self)
        record["batch_sizes"] = {str(arm): share for arm, share in self.batch_sizes.items()}
        record["best_batch_sizes"] = list(self.best_batch_sizes)
        return record


def summarise(episodes: Sequence[Episode], policies: Sequence[str]) -> list[Summary]:
    """Sum up a study.

    Args:
        episodes: Of all policies; those of ``zeus`` are compared with, if they are there.
        policies: The ones to sum up.

    Returns:
        One a workload and policy, in the order of the episodes.
    """
    groups: defaultdict[str, defaultdict[str, list[Episode]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for episode in episodes:
        groups[episode.name][episode.policy].append(episode)
    return [
        _summary(own[policy], own.get(BASELINE))
        for own in groups.values()
        for policy in own
        if policy in policies
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


def _summary(own: Sequence[Episode], zeus: Sequence[Episode] | None) -> Summary:
    first = own[0]
    spent = np.array([each.spent.sum(axis=0) for each in own])
    costs_j = np.array([each.spent[:, 0] for each in own]).cumsum(axis=1)
    regrets_j = np.array([each.regret_j for each in own]).cumsum(axis=1)
    regrets = np.array([_regrets(each) for each in own])
    never_j = float(np.mean([each.never[:, 0].sum() for each in own]))
    attempts = sum(each.attempts for each in own)
    arms = sum((Counter(each.arms) for each in own), Counter[int]())
    recurrences = len(first.starts_s)
    of_zeus = float(np.mean([_regrets(each)[-1] for each in zeus])) if zeus else None
    return Summary(
        workload=first.name,
        policy=first.policy,
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
        to_best=_ratios([_in_bests(each) for each in own]),
        to_zeus=_to_zeus(own, zeus),
        zeus_regret_best_runs=of_zeus,
        regret_to_zeus=float(regrets[:, -1].mean() / of_zeus) if of_zeus and of_zeus > 0 else None,
        batch_sizes={arm: arms[arm] / attempts for arm in sorted(arms)},
        attempts=attempts / len(own) / recurrences,
        looks=sum(each.looks for each in own) / len(own) / recurrences,
        failed_share=sum(each.failed for each in own) / attempts,
        unreached=sum(int((~each.reached).sum()) for each in own),
    )


def _regrets(episode: Episode) -> NDArray[np.float64]:
    """Cumulative regret in best runs, by recurrence."""
    regrets: NDArray[np.float64] = (episode.regret_j / episode.best[:, 0]).cumsum()
    return regrets


def _in_bests(episode: Episode) -> NDArray[np.float64]:
    ratios: NDArray[np.float64] = episode.spent.sum(axis=0) / episode.best.sum(axis=0)
    return ratios


def _ratios(by_seed: Sequence[NDArray[np.float64]]) -> Ratios:
    if not np.all(by_seed):  # over something infinite: it never reaches the target
        return Ratios(cost=None, energy=None, time=None)
    cost, energy, time = (float(mean) for mean in np.mean(by_seed, axis=0))
    return Ratios(cost=cost, energy=energy, time=time)


def _to_zeus(own: Sequence[Episode], zeus: Sequence[Episode] | None) -> Ratios:
    if not zeus:
        return Ratios(cost=None, energy=None, time=None)
    ours = np.mean([_in_bests(each) for each in own], axis=0)
    theirs = np.mean([_in_bests(each) for each in zeus], axis=0)
    return _ratios([ours / theirs])


def _spread(values: NDArray[np.float64]) -> Spread:
    """Return mean and quantiles over the first axis."""
    low, median, high = np.quantile(values, (0.05, 0.5, 0.95), axis=0)
    named = {"mean": values.mean(axis=0), "median": median, "p5": low, "p95": high}
    return {name: value.tolist() for name, value in named.items()}
