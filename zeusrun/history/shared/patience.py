"""How long a caller tries to reach a history that does not respond."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from zeusrun.history.base import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 5.0
"""How long a launcher that records an outcome tries to reach the history."""
READ_S = 2.0
"""How long a command that reads tries to."""
_PAUSE_READS_S = 10.0  # so long after a failure, a read does not wait again
_LONG_S = 20.0  # the user is informed of such a wait
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 10.0
_Result = TypeVar("_Result")


class Patience:
    """Calls again, after pauses that grow: exponential backoff with full jitter."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._error, self._until_t = UnavailableError(), 0.0

    @property
    def is_over(self) -> bool:
        """Whether the history did not respond just now."""
        return time.monotonic() < self._until_t

    def check(self) -> None:
        """Raise ``UnavailableError`` if the history did not respond just now."""
        if self.is_over:
            raise self._error

    def renew(self) -> None:
        """Forget that the history did not respond."""
        self._until_t = 0.0

    def read(self, call: Callable[[], _Result]) -> _Result:
        """Call for up to ``READ_S``; not at all if the history did not respond just now."""
        self.check()
        return self.keep_calling(call, READ_S)

    def keep_calling(
        self,
        call: Callable[[], _Result],
        patience_s: float,
        pause: Callable[[float], None] = time.sleep,
    ) -> _Result:
        """Call until the history is there; raises ``UnavailableError`` after ``patience_s``.

        It calls at least once. The call must be idempotent.
        """
        until_t = time.monotonic() + patience_s
        limit_s = _FIRST_PAUSE_S
        while True:
            try:
                result = call()
            except UnavailableError as error:
                left_s = until_t - time.monotonic()
                if left_s <= 0:
                    self._error, self._until_t = error, time.monotonic() + _PAUSE_READS_S
                    raise
                if patience_s >= _LONG_S:
                    self._tell(f"{error}; waiting for it, for up to {patience_s:g} s")
                jitter_s = random.uniform(0, limit_s)  # noqa: S311 - no secret
                pause_s = (error.retry_after_s or 0.0) + jitter_s
                pause(min(pause_s, left_s))
                limit_s = min(2 * limit_s, _LONGEST_PAUSE_S)
            else:
                self.renew()
                return result
