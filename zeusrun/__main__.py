"""The ``zeusrun`` command, and ``python -m zeusrun``: catches signals before anything else."""

from __future__ import annotations

import sys

from zeusrun.launcher.processes.signals import CaughtSignals

TYPE_CHECKING = False  # see signals.py
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the command; never returns.

    A submit takes a tenth of a second to import what it needs. A signal of that time counts, too:
    unhandled, SIGUSR1 would end it by the signal instead of with 75. A second one is obeyed at
    once: a job file on a dead disk may never be read.
    """
    if sys.argv[1:2] in (["submit"], ["rerun"]):
        CaughtSignals(impatient=True).__enter__()  # for as long as the process lives
    from zeusrun.cli import main as run  # noqa: PLC0415 - after the signals are caught

    run()


if __name__ == "__main__":
    main()
