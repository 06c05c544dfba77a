"""Finds stalls: the optimizer steps pause for much longer than ever before. Pure.

Only watched time counts: of a gap between two samples, as while the machine is suspended, at most
``MOST_GAP_S``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

USUAL_PAUSES = 10.0  # a stall is longer than this many times the longest pause so far
FIRST_PATIENCE = 10.0  # times after_s, until the first end of an epoch was seen
MOST_GAP_S = 1.0  # samples are a tenth of a second apart
TOGETHER = 0.9  # ranks that wait for each other pause for almost as long

STANDS_STILL = "the training has stalled: "


@dataclass(frozen=True)
class RankPauses:
    """The pauses between the optimizer steps of a rank, in watched seconds."""

    steps: int
    # Since the last step; ``None`` before the first one since the rank started, because loading
    # data and compiling may take any time.
    standing_s: float | None = 0.0
    longest_s: float = 0.0
    knows_epochs: bool = False  # whether ``longest_s`` includes the end of an epoch

    def patience_s(self, after_s: float) -> float:
        """Return the seconds without a step after which the rank has stalled."""
        least_s = after_s if self.knows_epochs else FIRST_PATIENCE * after_s
        return max(least_s, USUAL_PAUSES * self.longest_s)


@dataclass(frozen=True)
class Pauses:
    """The pauses of the ranks that have counted a step, at the last sample."""

    ranks: Mapping[int, RankPauses]
    seen_t: float | None = None  # monotonic second; ``None`` before the first sample
    epochs: int = 0


@dataclass(frozen=True)
class Stall:
    """A training without progress."""

    ranks: tuple[int, ...]  # those that take no step
    standing_s: float  # since the last step of the first of them
    longest_s: float  # its longest pause before


NO_PAUSES = Pauses({})


def watch_pauses(before: Pauses, now_t: float, steps: Mapping[int, int], epochs: int) -> Pauses:
    """Return the pauses after a sample of the step clocks at monotonic second ``now_t``."""
    if before.seen_t is None:  # these steps are from an earlier launch
        return Pauses({rank: RankPauses(count, None) for rank, count in steps.items()}, now_t)
    gap_s = min(max(0.0, now_t - before.seen_t), MOST_GAP_S)
    ranks = {
        rank: _advance(before.ranks.get(rank), count, gap_s, knows_epochs=before.epochs > 0)
        for rank, count in steps.items()
    }
    return Pauses(ranks, now_t, epochs)


def _advance(
    before: RankPauses | None, steps: int, gap_s: float, *, knows_epochs: bool
) -> RankPauses:
    if before is None:
        return RankPauses(steps)
    if steps == before.steps:
        standing_s = None if before.standing_s is None else before.standing_s + gap_s
        return replace(before, standing_s=standing_s)
    if before.standing_s is None:  # the first one since a restart
        return replace(before, steps=steps, standing_s=0.0)
    longest_s = max(before.longest_s, before.standing_s + gap_s)
    return RankPauses(steps, 0.0, longest_s, knows_epochs or before.knows_epochs)


def begin_again(before: Pauses) -> Pauses:
    """Return the pauses after a restart: a rank is watched again from its next step."""
    ranks = {rank: replace(known, standing_s=None) for rank, known in before.ranks.items()}
    return replace(before, ranks=ranks)


def find_stall(pauses: Pauses, after_s: float) -> Stall | None:
    """Return the stall of a training; ``None`` if all go on. Each may pause ``after_s``."""
    standing = {rank: of for rank, of in pauses.ranks.items() if of.standing_s is not None}
    patience_s = {rank: of.patience_s(after_s) for rank, of in standing.items()}
    stood_s = {rank: of.standing_s or 0.0 for rank, of in standing.items()}
    stalled = [rank for rank in standing if stood_s[rank] > patience_s[rank]]
    if not stalled:
        return None
    first = max(stalled, key=lambda rank: stood_s[rank])
    ranks = [rank for rank in sorted(standing) if stood_s[rank] > TOGETHER * patience_s[rank]]
    return Stall(tuple(ranks), stood_s[first], standing[first].longest_s)


def find_unusual_pause(pauses: Pauses) -> float | None:
    """Return the longest pause now, in seconds; ``None`` if no rank pauses longer than usual."""
    longest_s = max((rank.standing_s or 0.0 for rank in pauses.ranks.values()), default=0.0)
    usual_s = max((rank.longest_s for rank in pauses.ranks.values()), default=0.0)
    return longest_s if longest_s > max(MOST_GAP_S, USUAL_PAUSES * usual_s) else None


def describe_stall(stall: Stall, places: Mapping[int, str]) -> str:
    """Return a sentence, without full stop: which ranks stalled, how long, and where each rank is.

    ``places`` are such as ``in all_reduce, train.py:33``.
    """
    whose = "" if len(stall.ranks) == len(places) else f" on {ranks_text(stall.ranks)}"
    stood, longest = seconds_text(stall.standing_s), seconds_text(stall.longest_s)
    by_place: dict[str, list[int]] = {}
    for rank in sorted(places):
        by_place.setdefault(places[rank], []).append(rank)
    parts = [
        f"{ranks_text(ranks)} {'is' if len(ranks) == 1 else 'are'} {place}"
        for place, ranks in by_place.items()
    ]
    return (
        f"{STANDS_STILL}no optimizer step{whose} for {stood}, after pauses of at most "
        f"{longest}; {'; '.join(parts)}"
    )


def seconds_text(seconds: float) -> str:
    """Return ``62 s`` or ``0.4 s``."""
    return f"{seconds:.0f} s" if seconds >= 9.95 else f"{seconds:.1f} s"


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ``rank 3`` or ``ranks 0-2, 5``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    texts = [str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(texts)
