"""The ``zeusrun`` command, and ``python -m zeusrun``: catches signals before anything else."""

from __future__ import annotations

import sys

from zeusrun.launcher.processes.signals import CaughtSignals

TYPE_CHECKING = False  # see signals.py
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the command; never returns.

    A submit needs more than a tenth of a second for its imports. Without a handler, SIGUSR1 would
    kill it during that time, instead of the exit with code 75. A second signal ends it at once: a
    job file on a dead disk may never be read.
    """
    if sys.argv[1:2] in (["submit"], ["inside"]):
        CaughtSignals(impatient=True).__enter__()  # for as long as the process lives
    from zeusrun.cli import main as run  # noqa: PLC0415 - after the signals are caught

    run()


if __name__ == "__main__":
    main()
