"""The turns of a job: who may choose a trial now, and who waits for it.

A turn is a lease of the choice. A process that wants to choose takes a number, and asks again until
nobody is ahead. A turn that is not renewed expires, so a dead process holds up the others for
``TURN_S`` at most. Only the first turns need such a short lease: if a large crowd renewed all of
them every few seconds, the database would be busy with that alone.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

TURN_S = 5.0
"""How long one of the first turns lasts after it was last asked for."""
_FIRST = 4  # so many
_FAR_S = 60.0  # how long the others last
_SKEW_S = 60.0  # of clocks; a turn that lasts longer is of a clock that was set back
_FRESH = 0.6  # with more than this part of its time left, asking for a turn needs no write
_MAX_NUMBER = 1 << 62


class Turn(NamedTuple):
    """A place in the queue.

    Attributes:
        number: Names the turn; 0 if there is no queue, as for a choice that is made offline.
        ahead: How many come before; 0: choose now.
        waiting: How many there are in all, including this one and the one that chooses now.
    """

    number: int
    ahead: int = 0
    waiting: int = 1


class Turns:
    """The turns of a job at one moment, as a history stores them."""

    def __init__(self, text: str | bytes | None, now: float) -> None:
        """Read what ``text`` returned; a text that cannot be read contains no turns.

        ``now`` is the time by the clock of the history, in Unix seconds. Turns that have expired
        are left out.
        """
        self._now = now
        self._last, ends = _parse(text)
        self._ends = {n: at for n, at in ends.items() if now < at <= now + _FAR_S + _SKEW_S}

    @property
    def text(self) -> str:
        """The turns in JSON. Those that have come to the front last no longer than ``TURN_S``."""
        ends = {
            number: min(at, self._now + self._lease_s(place))
            for place, (number, at) in enumerate(sorted(self._ends.items()))
        }
        return json.dumps({"last": self._last, "ends": ends}, separators=(",", ":"))

    def find(self, number: int) -> Turn | None:
        """Return the place of a turn; ``None`` if it has expired or soon will: ask for it."""
        turn = self._place(number)
        fresh_s = _FRESH * self._lease_s(turn.ahead)
        return None if self._ends.get(number, 0.0) < self._now + fresh_s else turn

    def ask(self, number: int) -> Turn:
        """Renew a turn, or take a new one at the end if it has expired or is 0."""
        if number not in self._ends:
            self._last = number = self._last + 1
        turn = self._place(number)
        self._ends[number] = self._now + self._lease_s(turn.ahead)
        return turn._replace(waiting=len(self._ends))

    def use(self, number: int) -> bool:
        """End a turn; return whether nobody was ahead.

        It may have expired, as on a busy machine: if others have begun meanwhile, its choice is
        stale, and if not, nothing is wrong with it.
        """
        is_first = number <= min(self._ends, default=number)
        self._ends.pop(number, None)
        return is_first

    def _place(self, number: int) -> Turn:
        return Turn(number, sum(each < number for each in self._ends), len(self._ends))

    @staticmethod
    def _lease_s(ahead: int) -> float:
        return TURN_S if ahead < _FIRST else _FAR_S


def _parse(text: str | bytes | None) -> tuple[int, dict[int, float]]:
    try:
        found: dict[str, Any] = json.loads(text or "{}")
        last = int(found.get("last", 0))
        ends = {int(number): float(at) for number, at in found.get("ends", {}).items()}
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        return 0, {}
    last = max(last, *ends, 0)
    return (last, ends) if last < _MAX_NUMBER else (0, {})
