"""Decides with the other ranks whether to agree in another way, by how long it takes.

After KungFu's monitored all-reduce (Mai et al., OSDI 2020): each rank compares the seconds of its
all-reduces with a reference that it refreshes. Where most ranks find them slow, all change in the
same pass. But a rank that computes slowly also lets the others wait in their all-reduces: it comes
last, and waits for nobody, so the rank with the shortest all-reduce must find it slow, too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

CHECK = 16  # backward passes between two votes
_AGAIN = 2  # slow votes in a row after which the first way is left; then each one counts
_PATIENCE = 5  # votes without a change, after which the first way is tried again
_PROBE = 3  # passes of that
_SLOW = 1.5  # times the reference
_LEAST_S = 0.01  # by which an all-reduce must have become longer; other programs cost less
_SHARE = 0.1  # of a step as it is now, by which an all-reduce must have become longer to matter
_REFRESH = 0.1  # part of a new value in the reference


class Change(NamedTuple):
    """A decision of all ranks.

    ``way``: its number, from 0, the way of the job file. ``why``: a sentence for people; ``None``
    where that way is only tried, or left again.
    """

    way: int
    why: str | None


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
        gather: Returns the numbers of each rank; a collective call.
    """

    def __init__(self, ways: int, gather: Callable[[list[float]], list[list[float]]]) -> None:
        self.way = 0
        self._ways, self._gather = ways, gather
        self._reference_s: float | None = None  # of the first way, while the network is calm
        self._seconds: list[float] = []  # of the all-reduces of each step since the last vote
        self._began_t = time.perf_counter()
        self._votes = 0  # since the last change
        self._slow = 0  # in a row, that found it slow
        self._is_first = True  # its passes also allocate memory and connect
        self._probed: int | None = None  # the way to which a probe goes back

    def after_pass(self, seconds: float) -> Change | None:
        """Count a pass, whose all-reduces took so long; return what changes from now on."""
        self._seconds.append(seconds)
        if len(self._seconds) < (CHECK if self._probed is None else _PROBE):
            return None
        own_s, vote = self._look()
        self._seconds.clear()
        return self._decide(self._gather([own_s, vote]), own_s)

    def _look(self) -> tuple[float, float]:
        """Return what the all-reduces of a pass take of late, and 1 if that is slow, else 0."""
        # The lower quartile: other programs hit some passes, and a slow network hits all.
        own_s, now_t = sorted(self._seconds)[len(self._seconds) // 4], time.perf_counter()
        step_s, self._began_t = (now_t - self._began_t) / len(self._seconds), now_t
        if self._reference_s is None:
            return own_s, 0.0
        longer_s = own_s - self._reference_s
        matters = longer_s > max(_LEAST_S, _SHARE * step_s)
        return own_s, float(own_s > _SLOW * self._reference_s and matters)

    def _decide(self, votes: list[list[float]], own_s: float) -> Change | None:
        slow, of = sum(vote == 1 for _, vote in votes), f"of {len(votes)} ranks were"
        is_slow = 2 * slow > len(votes) and min(votes)[1] == 1
        self._votes += 1
        if self._probed is not None:
            before, self._probed = self._probed, None
            if is_slow:
                return self._change(before, None)
            return self._change(0, f"{len(votes) - slow} {of} calm")
        self._slow = self._slow + 1 if is_slow else 0
        if self._slow >= (1 if self.way else _AGAIN) and self.way + 1 < self._ways:
            return self._change(self.way + 1, f"{slow} {of} slow")
        if self.way == 0 and not is_slow:
            self._refresh(own_s)
        if self.way and self._votes >= _PATIENCE:
            self._probed = self.way
            return self._change(0, None)
        return None

    def _refresh(self, own_s: float) -> None:
        """Take a calm check into the reference; not the first one."""
        if self._is_first:
            self._is_first = False
            return
        before = self._reference_s
        if before is None or own_s < before:
            self._reference_s = own_s
        else:
            self._reference_s = before + _REFRESH * (own_s - before)

    def _change(self, way: int, why: str | None) -> Change:
        self.way, self._votes, self._slow = way, 0, 0
        return Change(way, why)
