"""The signals that end a submit, collected instead of obeyed at once."""

from __future__ import annotations

import signal

# Until this is imported a signal ends a submit, so typing and dataclasses are not.
TYPE_CHECKING = False
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


class CaughtSignals:
    """A context manager that collects signals; those ignored before (``nohup``) stay ignored.

    Within another one it shows what that one collects, too: no signal falls between the two.

    Attributes:
        received: Those that came, in order of arrival.
    """

    def __init__(self, numbers: Sequence[int] = ENDING, *, impatient: bool = False) -> None:
        """Prepare; nothing is caught yet.

        Args:
            numbers: The signals.
            impatient: Whether a second one does what it would have done without this, except
                while another context manager is entered within.
        """
        self.received: list[int] = []
        self._numbers, self._impatient = numbers, impatient
        self._before: dict[int, object] = {}
        self._made_patient: CaughtSignals | None = None

    def __enter__(self) -> Self:
        """Install the handlers; only the main thread may."""
        for number in self._numbers:
            handler = signal.getsignal(number)
            outer = getattr(handler, "__self__", None)
            if isinstance(outer, CaughtSignals):
                self.received = outer.received
                if outer._impatient:  # noqa: SLF001 - another of these
                    outer._impatient = False  # noqa: SLF001
                    self._made_patient = outer
            elif handler is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_error: object) -> None:
        """Put the former handlers back, and the outer one's impatience."""
        if self._made_patient is not None:
            self._made_patient._impatient = True  # noqa: SLF001
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _catch(self, number: int, _frame: FrameType | None) -> None:
        if self._impatient and self.received:
            self.__exit__()
            signal.raise_signal(number)
        self.received.append(number)
