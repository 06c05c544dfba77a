"""The signals that end a submit, collected instead of obeyed at once."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from typing_extensions import Self

PREEMPTING = (signal.SIGTERM, signal.SIGUSR1)
"""What a scheduler sends before it takes the machine back: Slurm, Kubernetes, spot instances."""

ENDING = (signal.SIGINT, signal.SIGHUP, *PREEMPTING)


def how_at_once(number: int, *, cancelled: bool) -> str:
    """Say how to end a training at once that is already told to end.

    Args:
        number: The signal that told it.
        cancelled: Whether that was for ``zeusrun cancel``.
    """
    if cancelled:
        return "`zeusrun cancel --now` ends it at once"
    if number == signal.SIGINT:
        return "press Ctrl-C again to end it at once"
    return f"send {signal.Signals(number).name} again to end it at once"


@dataclass
class CaughtSignals:
    """A context manager that collects signals; those ignored before (``nohup``) stay ignored.

    Within another one it shows what that one collects, too: no signal falls between the two.

    Attributes:
        numbers: The signals.
        received: Those that came, in order of arrival.
        impatient: Whether a second one does what it would have done without this. Over as soon as
            another context manager is entered within.
    """

    numbers: Sequence[int] = ENDING
    received: list[int] = field(default_factory=list)
    impatient: bool = False
    _before: dict[int, object] = field(default_factory=dict)

    def __enter__(self) -> Self:
        """Install the handlers; only the main thread may."""
        for number in self.numbers:
            handler = signal.getsignal(number)
            outer = getattr(handler, "__self__", None)
            if isinstance(outer, CaughtSignals):
                self.received = outer.received
                outer.impatient = False
            elif handler is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_error: object) -> None:
        """Put the former handlers back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _catch(self, number: int, _frame: FrameType | None) -> None:
        if self.impatient and self.received:
            self.__exit__()
            signal.raise_signal(number)
        self.received.append(number)
