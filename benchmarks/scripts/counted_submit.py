"""``zeusrun`` with notes of its conflicts and of when it begins, for ``benchmarks/crowd.py``."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from zeusrun.__main__ import main
from zeusrun.history import base
from zeusrun.launcher.attempts import recurrence


def note(*words: object) -> None:
    """Add a line to the file of the crowd."""
    with open(os.environ["CROWD_FILE"], "a", encoding="ascii") as file:  # noqa: PTH123 - one write
        file.write(" ".join(map(str, words)) + "\n")


def count(self: base.Conflict, *args: object) -> None:
    """Count a conflict, which this process raises or a server has answered."""
    Exception.__init__(self, *args)
    note("conflict")


begin = recurrence.begin


def timed(*args: Any) -> Any:  # noqa: ANN401 - as ``begin``
    """Begin a trial, and note when that was done and how many seconds it took."""
    started_t = time.monotonic()
    begun = begin(*args)
    now_t = time.monotonic()
    note("begun", now_t, now_t - started_t)
    return begun


base.Conflict.__init__ = count  # type: ignore[method-assign]
recurrence.begin = timed
sys.exit(main())
