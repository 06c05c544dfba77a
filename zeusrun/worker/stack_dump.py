"""Tells, when the launcher asks, where a rank is: the stacks of all its threads."""

from __future__ import annotations

import faulthandler
import os

from zeusrun.files.private import open_for_writing
from zeusrun.sidecar.orders import STACK_SIGNAL


def tell_stack_when_asked(path: str) -> None:
    """Append the stacks to a file at each ``STACK_SIGNAL``.

    The handler is C: it answers although the main thread waits in a collective, where no handler
    written in Python would ever run.

    Args:
        path: The file; it is created, and stays open. A link in its place is removed.

    Raises:
        OSError: If the file cannot be opened.
    """
    if STACK_SIGNAL is None:
        return
    descriptor = open_for_writing(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True)
