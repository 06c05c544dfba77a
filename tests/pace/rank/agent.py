"""The agent within a rank: writes the name of each event to a file."""

from __future__ import annotations

from pathlib import Path

from zeusrun.worker.agent import RankAgent


class _Writer(RankAgent):
    modules = frozenset({"torch.optim.optimizer"})

    def __init__(self, environment, every):
        self._path = Path(environment.plan.run_dir, f"pace-rank{environment.rank}.txt")
        self._every, self._seen = every, []

    def hook(self, module):
        self._seen.append(module.__name__)

    def begin_pass(self, part, loader):
        self._seen.append("pass")

    def end_pass(self, part):
        self._seen.append("end")

    def count_step(self, optimizer):
        self._seen.append("step")

    def conclude(self):
        self._path.write_text(" ".join([str(self._every), *self._seen]))


def join(hooks, given):
    return _Writer(hooks.environment, given["every"])
