"""Counts optimizer steps through torch's global hooks, once the script has imported torch."""

from __future__ import annotations

import importlib.machinery
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_OPTIMIZER_MODULE = "torch.optim.optimizer"


def count_steps(tick: Callable[[], None]) -> None:
    """Call ``tick`` after every optimizer step of this process; does not import torch."""
    if _OPTIMIZER_MODULE in sys.modules:
        _register(sys.modules[_OPTIMIZER_MODULE], tick)
    else:
        sys.meta_path.insert(0, _OptimizerFinder(tick))


def _register(optimizer: ModuleType, tick: Callable[[], None]) -> None:
    """Register the hooks (torch.optim.optimizer.register_optimizer_step_pre_hook, since 2.2).

    A subclass that calls ``super().step()`` fires the hooks twice: pre, pre, post, post. A step is
    a post that follows a pre, so it counts once. A step that raises does not count.
    """
    entered = False

    def before(*_: Any) -> None:  # noqa: ANN401 - optimizer, args, kwargs of any optimizer
        nonlocal entered
        entered = True

    def after(*_: Any) -> None:  # noqa: ANN401
        nonlocal entered
        if entered:
            entered = False
            tick()

    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(after)


class _OptimizerFinder:
    """Finds torch.optim.optimizer once, and registers the hooks when it has been executed."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return torch's own spec with a loader that registers the hooks afterwards."""
        if name != _OPTIMIZER_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                _register(module, self._tick)

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
