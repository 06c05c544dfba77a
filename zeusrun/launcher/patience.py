"""How a submit waits: for as long as it may, until a signal tells it to end."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zeusrun.errors import BusyError, ExitCode
from zeusrun.launcher.signals import PREEMPTING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PERIOD_S = 0.5  # files of other processes know no events


@dataclass
class Patience:
    """What bounds the waiting of a submit.

    Attributes:
        job: Whose.
        until_t: Monotonic second to give up at; ``None`` to wait for as long as it takes.
        signals: Those that came, in order.
        tell: Takes a sentence for people.
    """

    job: str
    until_t: float | None
    signals: Sequence[int]
    tell: Callable[[str], None]
    _told: set[str] = field(default_factory=set)

    def check(self) -> None:
        """Check that nobody has told it to end.

        Raises:
            BusyError: If a signal came. Its exit code is that of a training ended so.
        """
        if not self.signals:
            return
        number = self.signals[0]
        name = signal.Signals(number).name
        error = BusyError(f"{self.job}: ended by {name} while it waited for its turn")
        if number not in PREEMPTING:
            error.exit_code = ExitCode.SIGNAL_BASE + number
        raise error

    def wait(self, why: str, advice: str) -> None:
        """Wait for a moment.

        Args:
            why: What is in the way: a sentence without its end.
            advice: What becomes of it, told once for each kind.

        Raises:
            BusyError: If a signal came, or it took too long.
        """
        self.check()
        if self.until_t is not None and time.monotonic() > self.until_t:
            raise BusyError(f"{self.job}: {why}, and its deadline has passed; this run is skipped")
        if advice not in self._told:
            self._told.add(advice)
            self.tell(f"{why}; {advice}")
        time.sleep(_PERIOD_S)
