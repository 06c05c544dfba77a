"""Decides with the other ranks whether to agree in another way, by how long it takes.

After KungFu's monitored all-reduce (Mai et al., OSDI 2020): each rank compares the seconds of its
all-reduces with a reference that it refreshes. Where most ranks find them slow, all change in the
same pass.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

CHECK = 16  # backward passes between two votes
_PATIENCE = 5  # votes without a change, after which the first way is tried again
_PROBE = 3  # passes of that
_SLOW = 1.5  # times the reference
_SHARE = 0.1  # of a step, by which an all-reduce must have become longer to matter
_REFRESH = 0.1  # part of a new value in the reference


class Change(NamedTuple):
    """A decision of all ranks.

    ``way``: its number, from 0, the way of the job file. ``why``: a sentence for people; empty
    where that way is only tried, or left again.
    """

    way: int
    why: str


class Seconds:
    """How long the all-reduces of a pass take: from the first one's start to the last one's end."""

    def __init__(self) -> None:
        self._begun_t: float | None = None
        self._ended_t = 0.0

    def begin(self) -> None:
        """Begin an all-reduce."""
        if self._begun_t is None:
            self._begun_t = time.perf_counter()

    def end(self) -> None:
        """End an all-reduce."""
        self._ended_t = time.perf_counter()

    def take(self) -> float | None:
        """Return the seconds of a pass, and begin the next one; ``None`` before the first pass."""
        begun_t, self._begun_t = self._begun_t, None
        return None if begun_t is None else max(0.0, self._ended_t - begun_t)


class Vote:
    """The votes of one rank on the way in which all agree.

    Args:
        ways: How many there are; number 0 is that of the job file.
        count_votes: Returns the sum of a number over all ranks; a collective call.
        ranks: Their number.
    """

    def __init__(self, ways: int, count_votes: Callable[[float], float], ranks: int) -> None:
        self.way = 0
        self._ways, self._count_votes, self._ranks = ways, count_votes, ranks
        self._reference_s: float | None = None  # of the first way, while the network is calm
        self._step_s = 0.0  # of a whole step, then
        self._seconds: list[float] = []  # of the all-reduces of each step since the last vote
        self._began_t = time.perf_counter()
        self._votes = 0  # since the last change
        self._is_first = True  # its passes also allocate memory and connect
        self._probed: int | None = None  # the way to which a probe goes back

    def after_pass(self, seconds: float) -> Change | None:
        """Count a pass, whose all-reduces took so long; return what changes from now on."""
        self._seconds.append(seconds)
        if len(self._seconds) < (CHECK if self._probed is None else _PROBE):
            return None
        own_s = _typical(self._seconds)
        now_t = time.perf_counter()
        step_s, self._began_t = (now_t - self._began_t) / len(self._seconds), now_t
        self._seconds.clear()
        slow = round(self._count_votes(float(self._is_slow(own_s))))
        return self._decide(slow, own_s, step_s)

    def _decide(self, slow: int, own_s: float, step_s: float) -> Change | None:
        is_slow, of = 2 * slow > self._ranks, f"of {self._ranks} ranks were"
        self._votes += 1
        if self._probed is not None:
            before, self._probed = self._probed, None
            if is_slow:
                return self._change(before, "")
            return self._change(0, f"{self._ranks - slow} {of} calm")
        if is_slow and self.way + 1 < self._ways:
            return self._change(self.way + 1, f"{slow} {of} slow")
        if self.way == 0 and not is_slow:
            self._refresh(own_s, step_s)
        if self.way and self._votes >= _PATIENCE:
            self._probed = self.way
            return self._change(0, "")
        return None

    def _refresh(self, own_s: float, step_s: float) -> None:
        """Take a calm check into the reference; not the first one."""
        if self._is_first:
            self._is_first = False
            return
        before = self._reference_s
        self._step_s = step_s
        if before is None or own_s < before:
            self._reference_s = own_s
        else:
            self._reference_s = before + _REFRESH * (own_s - before)

    def _is_slow(self, seconds: float) -> bool:
        if self._reference_s is None:
            return False
        longer_s = seconds - self._reference_s
        return seconds > _SLOW * self._reference_s and longer_s > _SHARE * self._step_s

    def _change(self, way: int, why: str) -> Change:
        self.way, self._votes = way, 0
        return Change(way, why)


def _typical(seconds: list[float]) -> float:
    """Return the lower quartile.

    What other programs of the machine cost hits some passes; a slow network hits all.
    """
    return sorted(seconds)[len(seconds) // 4]
