"""Pruning exploration: which arm to run next until every survivor has reached the target twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from zeusrun.bandit.observation import Run

    Results = Mapping[int, Sequence[Run]]

# You et al., NSDI 2023: a second round gives each surviving arm a first idea of its spread.
ROUNDS = 2


@dataclass(frozen=True)
class Pruning:
    """The state of the exploration."""

    next_arm: int | None  # ``None`` when it is over
    why: str  # why that one; empty when it is over
    survivors: tuple[int, ...]  # not pruned so far, ascending
    pruned: Mapping[int, str]  # why each other arm is out


def nearest(arms: Collection[int], arm: int) -> int:
    """Return the one of ``arms`` closest to ``arm`` by ratio, the smaller of two equally close."""
    return min(arms, key=lambda other: (max(other, arm) / min(other, arm), other))


def prune(
    arms: Sequence[int], default: int, results: Results, not_now: Collection[int] = ()
) -> Pruning:
    """Replay the exploration over the results so far (You et al., NSDI 2023, batch sizes).

    A round runs a starting arm, then smaller ones in descending order until one fails, then larger
    ones in ascending order until one fails. An arm that fails is pruned, with all arms beyond it; a
    starting arm that fails ends neither direction. The first round starts at the default (or the
    nearest arm, if memory rules it out), the second at the survivor that was cheapest in the first.

    Round ``k`` reads the ``k``-th result of each arm, in order of start; the order in which
    different arms finish does not matter. Arms ``not_now`` count as failed where the round would
    have to run them.
    """
    survivors = tuple(arms)
    pruned: dict[int, str] = {}
    for index in range(ROUNDS):
        if not survivors:
            break
        start = _starting_arm(survivors, default, index, results)
        failed, missing = _walk(survivors, start, index, results, not_now)
        pruned |= failed
        survivors = tuple(arm for arm in survivors if arm not in pruned)
        if missing is not None:
            arm, place = missing
            return Pruning(arm, f"round {index + 1}: {arm} {place}", survivors, pruned)
    return Pruning(None, "", survivors, pruned)


def _starting_arm(arms: Collection[int], default: int, index: int, results: Results) -> int:
    """Return the cheapest arm of the round before, or the nearest to the default without one."""
    costs = {arm: results[arm][index - 1].cost_j for arm in arms} if index else {}
    known = {arm: cost for arm, cost in costs.items() if cost is not None}
    return min(known, key=lambda arm: (known[arm], arm)) if known else nearest(arms, default)


def _walk(
    arms: Sequence[int], start: int, index: int, results: Results, not_now: Collection[int]
) -> tuple[dict[int, str], tuple[int, str] | None]:
    """Return the arms that a round prunes, and the arm whose result is missing and its place."""
    pruned: dict[int, str] = {}
    lower = [arm for arm in reversed(arms) if arm < start]
    upper = [arm for arm in arms if arm > start]
    for side, path in (("below", [start, *lower]), ("above", upper)):
        for step, arm in enumerate(path):
            runs = results.get(arm, ())
            if len(runs) <= index and arm not in not_now:
                place = "comes first" if arm == start else f"is next {side} {start}"
                return pruned, (arm, place)
            if len(runs) <= index or runs[index].status is not TrialStatus.REACHED:
                pruned[arm] = f"failed in round {index + 1}"
                if arm != start:
                    beyond = f"lies beyond {arm}, which failed in round {index + 1}"
                    pruned.update(dict.fromkeys(path[step + 1 :], beyond))
                    break
    return pruned, None
