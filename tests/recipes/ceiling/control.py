"""The stop rule of the section ``ceiling``."""

from __future__ import annotations

import contextlib

from zeusrun.launcher.supervision.agent import Agent


class _Rule(Agent):
    def __init__(self, above, control):
        self._above, self._control = above, control

    def advance(self, progress):
        if progress.last_value is not None and progress.last_value > self._above:
            self._control.stop(f"{progress.last_value:g} is above the ceiling of {self._above:g}")


@contextlib.contextmanager
def open_agent(section, run):
    yield _Rule(section.above, run.control)
