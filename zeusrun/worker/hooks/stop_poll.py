"""Lets all ranks decide together whether to stop, about once a second, in the same step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from zeusrun.worker.collectives import all_hooked

if TYPE_CHECKING:
    from zeusrun.worker.environment import WorkerEnvironment

_INTERVAL_S = 1.0
_MAX_STEPS = 1000


class Copyable:
    """A callback that scripts can copy and pickle together with their trainer.

    It is the first base of the callback's class; the last base is the library's own class. A pickle
    contains an object of the library's class instead, so that it can be read without zeusrun.
    """

    def __deepcopy__(self, _memo: Any) -> Any:
        return type(self)()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).__bases__[-1], ()


class StopPoll:
    """Counts steps until the next collective; every rank counts to the same number."""

    def __init__(self, environment: WorkerEnvironment) -> None:
        self._environment = environment
        self._every = 1
        self._steps = 0
        self._since = time.monotonic()

    def after_step(self) -> bool:
        """Whether to stop now. A collective call in some steps: every rank calls it in each."""
        self._steps += 1
        return self._steps >= self._every and self.now()

    def now(self) -> bool:
        """Whether to stop now. A collective call, where every rank is sure to have this hook."""
        if self._environment.is_grown and not all_hooked():  # a signal ends the script
            return False
        now = time.monotonic()
        step_s = (now - self._since) / max(1, self._steps)
        stop, step_s = self._environment.should_stop(step_s)
        # At most four times as many as before: the first step is slower than the others.
        wanted = int(_INTERVAL_S / step_s) if step_s > 0 else _MAX_STEPS
        self._every = max(1, min(wanted, 4 * self._every, _MAX_STEPS))
        self._steps, self._since = 0, now
        return stop
