"""Asks all ranks whether to stop, in the same step on each of them and about once a second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zeusrun.worker.context import RunContext

_INTERVAL_S = 1.0
_MOST_STEPS = 1000


class Copyable:
    """A callback that scripts may copy and pickle with their trainer, as with any other.

    It is the first base of a class that is made for a library; the last one is the library's own,
    which a pickle contains in its place: whoever reads it need not have zeusrun.
    """

    def __deepcopy__(self, _memo: Any) -> Any:
        return type(self)()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).__bases__[-1], ()


class StopPoll:
    """Counts steps until the next collective; every rank counts to the same number."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._every = 1
        self._steps = 0
        self._since = time.monotonic()

    def after_step(self) -> bool:
        """Whether to stop now. A collective call in some steps: every rank calls it in each."""
        self._steps += 1
        return self._steps >= self._every and self.now()

    def now(self) -> bool:
        """Whether to stop now. A collective call."""
        now = time.monotonic()
        step_s = (now - self._since) / max(1, self._steps)
        stop, step_s = self._run.should_stop_and(step_s)
        # Four times as many at most: the first step is slow, and says little about the others.
        wanted = int(_INTERVAL_S / step_s) if step_s > 0 else _MOST_STEPS
        self._every = max(1, min(wanted, 4 * self._every, _MOST_STEPS))
        self._steps, self._since = 0, now
        return stop
