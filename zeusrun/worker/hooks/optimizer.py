"""Counts optimizer steps through torch's global hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.apply import apply_learning_rate

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks


def install(optimizer: ModuleType, hooks: Hooks) -> None:
    """Register the hooks (torch.optim.optimizer.register_optimizer_step_pre_hook, since 2.2).

    A subclass that calls ``super().step()`` fires the hooks twice: pre, pre, post, post. A step is
    a post that follows a pre, so it counts once. A step that raises does not count.
    """
    given = hooks.run.learning_rate_to_replace
    if given is not None:
        apply_learning_rate(optimizer, hooks.run, given)
    entered = False
    tick, step, watch, rates = hooks.tick, hooks.observer.step, hooks.watch, hooks.rates

    def before(stepping: Any, *_: Any) -> None:
        nonlocal entered
        if rates is not None and not entered:
            rates.before(stepping)
        entered = True

    def after(stepped: Any, *_: Any) -> None:
        nonlocal entered
        if entered:
            entered = False
            if rates is not None:
                rates.after()
            tick()
            step(stepped)
            if watch is not None:
                watch.after_step(stepped)

    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(after)
