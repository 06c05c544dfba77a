"""Finds the ranks of an elastic training that do nothing while the others wait for them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zeusrun.elastic.rank.board import BY_EPOCHS, BY_STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.elastic.rank.board import Place

_LOOK_S = 1.0  # at most this counts between two looks; else this process was stopped
_BUSY_MS = 100  # a main thread with less CPU time than this within ``hang_s`` does nothing


class HangWatch:
    """Watches the members; each start of all ranks has a new watch.

    Args:
        hang_s: How long others may wait for a rank that does nothing, in seconds.
    """

    def __init__(self, hang_s: float) -> None:
        self._hang_s, self._looked_t, self._seen_s = hang_s, math.inf, 0.0
        # By slot and kind: the last state, and since when it has been the same.
        self._seen: dict[tuple[int, str], tuple[tuple[int, ...], float]] = {}

    def find(self, places: Mapping[int, Place], now_t: float) -> list[int]:
        """Return the slots of the members that hang.

        Args:
            places: The state of each member, by its slot.
            now_t: Monotonic seconds. Call this at every tick.
        """
        self._seen_s += min(max(0.0, now_t - self._looked_t), _LOOK_S)
        self._looked_t, now_t = now_t, self._seen_s
        idle_s = {
            slot: self._unchanged_s(slot, "idle", (*_done(place), place.cpu_ms // _BUSY_MS), now_t)
            for slot, place in places.items()
        }
        joining = any(place.joins > place.generation for place in places.values())
        hung = []
        for slot, place in places.items():
            others = [idle_s[other] for other in places if other != slot]
            ahead = [idle_s[n] for n, other in places.items() if _is_ahead(other, place)]
            waited_s = math.inf if joining else max(ahead, default=0.0)
            is_awaited = place.joins <= place.generation and waited_s > 0
            # Elsewhere than in a step, CPU time counts as work: a rank may evaluate or save.
            cpu = 0 if place.is_in_step else place.cpu_ms // _BUSY_MS
            still_s = self._unchanged_s(slot, "still", (is_awaited, *_done(place), cpu), now_t)
            # A process stopped within the collective of all is not behind, but has no heartbeats.
            frozen_s = self._unchanged_s(slot, "frozen", (place.beats,), now_t)
            seconds = min(still_s, waited_s) if is_awaited else min([frozen_s, *others])
            # Before the first pass over the data, a rank may download the data for the others.
            if others and seconds > self._hang_s and place.mode in {BY_STEPS, BY_EPOCHS}:
                hung.append(slot)
        return hung

    def _unchanged_s(self, slot: int, what: str, state: tuple[int, ...], now_t: float) -> float:
        """Return for how many seconds a state of a member has not changed."""
        before, since_t = self._seen.get((slot, what), ((), now_t))
        if before != state:
            self._seen[slot, what] = state, now_t
            return 0.0
        return now_t - since_t


def _done(place: Place) -> tuple[int, ...]:
    return place.steps, place.collectives, place.joins, place.is_in_step


def _is_ahead(place: Place, other: Place) -> bool:
    """Whether a member has begun a collective that another one of its generation has not.

    A member without a process group has begun none: nobody waits for it.
    """
    return place.generation == other.generation and 0 < other.collectives < place.collectives
