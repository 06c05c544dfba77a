"""Which power limit a job's GPUs have had over time, as it was read from them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class LimitSeries:
    """The limit over time; what is kept grows with the changes, not with the readings."""

    def __init__(self) -> None:
        self._changes: list[tuple[float, float | None]] = []
        self._last_s = 0.0

    def add(self, time_s: float, limits_w: Sequence[float | None]) -> None:
        """Take a reading.

        Args:
            time_s: Monotonic seconds, later than at the last one.
            limits_w: Watts by GPU; ``None`` for one that does not tell. The lowest counts: the
                slowest rank sets the pace.
        """
        self._last_s = time_s
        known = [limit_w for limit_w in limits_w if limit_w is not None]
        limit_w = min(known) if known and len(known) == len(limits_w) else None
        if not self._changes or self._changes[-1][1] != limit_w:
            self._changes.append((time_s, limit_w))

    def longest_w(self, since_s: float, until_s: float) -> float | None:
        """Return the watts per GPU that were in force for most of a window; ``None`` if unknown.

        A reading stands for the time until the next one.
        """
        held_s: defaultdict[float | None, float] = defaultdict(float)
        ends = [*self._changes, (max(self._last_s, until_s), None)]
        for (from_s, limit_w), (to_s, _) in itertools.pairwise(ends):
            held_s[limit_w] += max(0.0, min(to_s, until_s) - max(from_s, since_s))
        longest_w = max(held_s, key=lambda limit_w: held_s[limit_w], default=None)
        return longest_w if held_s[longest_w] > 0 else None
