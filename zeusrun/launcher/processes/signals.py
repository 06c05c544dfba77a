"""Collects the signals that end a submit, instead of obeying them at once."""

from __future__ import annotations

import signal

# A signal that comes before this is imported ends the submit: typing would take 10 ms.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from typing_extensions import Self

PREEMPTING = (signal.SIGTERM, signal.SIGUSR1)
"""Sent before the machine is taken back, by Slurm, Kubernetes, spot instances."""

ENDING = (signal.SIGINT, signal.SIGHUP, *PREEMPTING)


class CaughtSignals:
    """A context manager that collects signals; those ignored before (``nohup``) stay ignored.

    Two that are nested share ``received``, so that no signal is lost between them. If it is
    ``impatient``, a second signal has its usual effect, unless another one is entered within.
    """

    def __init__(self, *, impatient: bool = False) -> None:
        self.received: list[int] = []  # in order of arrival
        self._impatient = impatient
        self._before: dict[int, object] = {}
        self._made_patient: CaughtSignals | None = None

    def __enter__(self) -> Self:
        """Install the handlers; only in the main thread."""
        for number in ENDING:
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
        """Restore the handlers, and the impatience of the outer context manager."""
        if self._made_patient is not None:
            self._made_patient._impatient = True  # noqa: SLF001
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _catch(self, number: int, _frame: FrameType | None) -> None:
        if self._impatient and self.received:
            self.__exit__()
            signal.raise_signal(number)
        self.received.append(number)
