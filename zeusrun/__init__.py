"""zeusrun: a torchrun that learns. Training scripts need ``zeusrun.current()``, or nothing."""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which takes longer to import than this does
if TYPE_CHECKING:
    from zeusrun.worker.run import Run

__version__ = "0.1.0"
__all__ = ["__version__", "current", "watch"]


def current() -> Run:
    """Return the run that this process belongs to.

    Outside zeusrun it is inert: it returns the defaults given and reports to nobody.
    """
    from zeusrun.worker.run import current_run  # noqa: PLC0415 - the launcher never needs it

    return current_run()


def watch(model: object) -> None:
    """Measure the gradients of a model as the section ``watch`` of the job file asks for.

    A ``DistributedDataParallel`` is watched by itself. Without that section, and outside zeusrun,
    this does nothing. A model that cannot be watched is trained as it is, with a warning.

    Args:
        model: A ``torch.nn.Module`` that trains on one rank, before its first training step.
    """
    from zeusrun.worker.environment import current_environment  # noqa: PLC0415 - few need it

    for agent in current_environment().agents:
        agent.watch(model)
