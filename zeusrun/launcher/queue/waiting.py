"""How a submit waits: for as long as it may, until a signal tells it to end."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zeusrun.clock import read_clock
from zeusrun.errors import BusyError, ExitCode
from zeusrun.launcher.processes.signals import PREEMPTING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PERIOD_S = 0.5  # files of other processes know no events


@dataclass
class Patience:
    """What bounds the waiting of a submit.

    Attributes:
        job: Whose.
        until: Unix second to give up at, by the clock as a deadline is: a machine may sleep
            meanwhile. ``None`` to wait for as long as it takes.
        signals: Those that came, in order.
        tell: Takes a sentence for people.
    """

    job: str
    until: float | None
    signals: Sequence[int]
    tell: Callable[[str], None]
    _told: set[str] = field(default_factory=set)

    def wait(self, why: str, advice: str) -> None:
        """Wait for a moment.

        Args:
            why: What is in the way: a sentence without its end.
            advice: What becomes of it, told once for each kind.

        Raises:
            BusyError: If a signal came, or it took too long.
        """
        check_not_ended(self.job, self.signals)
        if self.until is not None and read_clock() > self.until:
            raise BusyError(f"{self.job}: {why}, and its deadline has passed; this run is skipped")
        if advice not in self._told:
            self._told.add(advice)
            self.tell(f"{why}; {advice}")
        time.sleep(_PERIOD_S)


def check_not_ended(job: str, signals: Sequence[int]) -> None:
    """Check that nobody has told a submit to end before it has begun.

    Args:
        job: Whose.
        signals: Those that came, in order.

    Raises:
        BusyError: If a signal came. Its exit code is that of a training ended so.
    """
    if not signals:
        return
    error = BusyError(f"{job}: ended by {signal.Signals(signals[0]).name} before it began")
    if signals[0] not in PREEMPTING:
        error.exit_code = ExitCode.SIGNAL_BASE + signals[0]
    raise error
