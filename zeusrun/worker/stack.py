"""Tells, when the launcher asks, where a rank is: the stacks of all its threads."""

from __future__ import annotations

import faulthandler
import os

from zeusrun.sidecar import STACK_SIGNAL


def tell_stack_when_asked(path: str) -> None:
    """Append the stacks to a file at each ``STACK_SIGNAL``.

    The handler is C: it answers although the main thread waits in a collective, where no handler
    written in Python would ever run.

    Args:
        path: The file; it is created, and stays open. A link or a pipe is refused.

    Raises:
        OSError: If the file cannot be opened.
    """
    if STACK_SIGNAL is None:
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    faulthandler.register(STACK_SIGNAL, file=os.open(path, flags, 0o600), all_threads=True)
