"""zeusrun: a torchrun that learns. In a training script, ``zeusrun.current()`` is all there is."""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which takes longer to import than this does
if TYPE_CHECKING:
    from zeusrun.worker.context import RunContext

__version__ = "0.1.0"
__all__ = ["__version__", "current"]


def current() -> RunContext:
    """Return the run that this process belongs to.

    Outside zeusrun it is inert: it returns the defaults given and reports to nobody.
    """
    from zeusrun.worker.context import current_run  # noqa: PLC0415 - the launcher never needs it

    return current_run()
