"""The section ``adapt`` inside a rank: sets the batch size of ``run.loader`` and learning rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from zeusrun.adapt.rank.control import Control
from zeusrun.adapt.rank.policies import Plan
from zeusrun.worker.agent import RankAgent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.gradients.rank.agent import WatchedModels
    from zeusrun.gradients.rank.noise import NoiseScale
    from zeusrun.worker.hooks.install import Hooks


def join(hooks: Hooks, given: Mapping[str, Any]) -> AdaptAgent:
    """Return the agent that changes the batch size by the policy of the section."""
    watch = cast("WatchedModels | None", hooks.parts.get("watch"))

    def noise() -> NoiseScale | None:
        return None if watch is None else watch.noise

    return AdaptAgent(Control(hooks.environment, Plan.read(given), noise))


class AdaptAgent(RankAgent):
    """Changes the batch size, and with it the learning rate, while a training runs."""

    def __init__(self, control: Control) -> None:
        self.loader_control = self._control = control
        self.rates = control.rates

    def conclude(self) -> None:
        """See ``RankAgent.conclude``."""
        self._control.end()
