"""How many ranks pay: adds one after the other while the training gains by it.

By throughput, the rule is that of KungFu (Mai et al., OSDI 2020, section 6.3): a rank stays if the
throughput T(n) is at least (1 + 1/(3n)) T(n - 1). By joules, it stays if a sample takes less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.sidecar.step_clock import StepCount

_SKIPPED = 2  # steps after each change


@dataclass(frozen=True)
class _Window:
    """Since when a number of ranks is measured."""

    generation: int
    size: int
    steps: int
    t: float | None = None  # once the first steps are over


class Provisioner:
    """Measures each number of ranks for some steps, and decides on the next.

    Args:
        by: ``throughput`` or ``joules``.
        every: Steps for which each number of ranks is measured.
        most: Ranks.
        energy_between: Returns joules between two monotonic seconds; ``None``: unknown.
    """

    def __init__(
        self,
        by: str,
        every: int,
        most: int,
        energy_between: Callable[[float, float], float | None],
    ) -> None:
        self._by, self._every, self._most = by, every, most
        self._energy_between = energy_between
        self._window: _Window | None = None
        self._asked_in: int | None = None  # the generation after which others were asked for
        self._known: dict[int, float] = {}  # steps a second, or a joule, by ranks
        self.has_ended = False

    def advance(self, generation: int, size: int, count: StepCount) -> int | None:
        """Take in the step clock of rank 0; return another number of ranks, if that is due.

        ``generation``: the number of the present one; another one is measured from its start.
        """
        window = self._window
        if window is None or window.generation != generation:
            self._window = _Window(generation, size, count.steps + _SKIPPED)
            return None
        if window.t is None:
            if count.steps >= window.steps:
                self._window = _Window(generation, size, count.steps, count.last_step_t)
            return None
        steps = count.steps - window.steps
        if self.has_ended or self._asked_in == generation or steps < self._every:
            return None  # newcomers that start would slow these ranks down
        spent = count.last_step_t - window.t
        if self._by == "joules":
            spent = self._energy_between(window.t, count.last_step_t) or 0.0
        if spent <= 0:
            return None
        self._known[size] = steps / spent
        self._asked_in = generation
        return self._choose(size)

    def _choose(self, size: int) -> int | None:
        before, gain = self._known.get(size - 1), 1.0
        if self._by == "throughput":
            gain += 1 / (3 * size)
        if before is not None and self._known[size] < gain * before:
            self.has_ended = True
            return size - 1
        self.has_ended = size >= self._most
        return None if self.has_ended else size + 1
