"""Finds the ranks that keep the others of an elastic training waiting, and do nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from zeusrun.elastic.rank.board import BY_EPOCHS, BY_STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.elastic.rank.board import Place


class HangWatch:
    """What the members of a start were seen to do, and since when.

    Args:
        hang_s: For how long a rank may keep the others waiting.
    """

    def __init__(self, hang_s: float) -> None:
        self._hang_s = hang_s
        self._seen: dict[tuple[int, str], tuple[tuple[int, ...], float]] = {}

    def find(self, places: Mapping[int, Place]) -> list[int]:
        """Return the slots of the members that hang now; call it at every tick."""
        joining = any(each.joins > each.generation for each in places.values())
        idle_s, frozen_s, behind_s = dict[int, float](), dict[int, float](), dict[int, float]()
        for slot, place in places.items():
            done = (place.steps, place.collectives, place.joins, place.is_in_step)
            idle_s[slot] = self._unchanged_s(slot, "idle", (*done, place.busy))
            frozen_s[slot] = self._unchanged_s(slot, "frozen", (place.beats,))
            behind = place.joins <= place.generation and (
                joining or any(_is_ahead(each, place) for each in places.values())
            )
            # Within a step, nothing but the step counts. Elsewhere it may evaluate, or save.
            sign = (behind, *done, 0 if place.is_in_step else place.busy)
            seconds = self._unchanged_s(slot, "behind", sign)
            behind_s[slot] = seconds if behind else 0.0
        hung = []
        for slot, place in places.items():
            others = [idle_s[other] for other in places if other != slot]
            # One that is stopped within a collective is not behind.
            seconds = max(behind_s[slot], min([frozen_s[slot], *others]) if others else 0.0)
            # Before the first pass, one may download data for the others.
            if seconds > self._hang_s and place.mode in {BY_STEPS, BY_EPOCHS}:
                hung.append(slot)
        return hung

    def _unchanged_s(self, slot: int, what: str, seen: tuple[int, ...]) -> float:
        """Return for how long something of a member has been as it is now."""
        now_t = time.monotonic()
        before, since_t = self._seen.get((slot, what), ((), now_t))
        if before != seen:
            self._seen[slot, what] = seen, now_t
            return 0.0
        return now_t - since_t


def _is_ahead(place: Place, other: Place) -> bool:
    """Whether a member has begun a collective that another one of its generation has not."""
    return place.generation == other.generation and place.collectives > other.collectives
