"""Counts optimizer steps through torch's global hooks."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.apply import apply_learning_rate
from zeusrun.worker.hooks.install import wrap

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from zeusrun.worker.adapt.rates import Rates
    from zeusrun.worker.hooks.install import Hooks


def install(optimizer: ModuleType, hooks: Hooks) -> None:
    """Register the hooks (torch.optim.optimizer.register_optimizer_step_pre_hook, since 2.2).

    A subclass that calls ``super().step()`` fires the hooks twice: pre, pre, post, post. A step is
    a post that follows a pre, so it counts once. A step that raises does not count.
    """
    given = hooks.environment.given_learning_rate
    if given is not None:
        apply_learning_rate(optimizer, hooks.environment, given)
    rates, entered = (None if hooks.control is None else hooks.control.rates), False
    is_nested = _change_rates(optimizer.Optimizer, rates) if rates is not None else lambda: False
    counts, observer, watch = hooks.member.counts, hooks.observer, hooks.watch
    step = observer.step

    def before(*_: Any) -> None:
        nonlocal entered
        entered = True

    def after(stepped: Any, *_: Any) -> None:
        nonlocal entered
        if entered and not is_nested():
            entered = False
            if rates is not None:
                rates.after()  # before anything looks at them
            if not counts():
                return
            counted = True
            try:
                counted = step(stepped)
            finally:
                numbers = observer.consumed or 0, observer.epoch or 0, observer.others
                if (tick := hooks.member.tick) is not None:
                    tick(*numbers, counts=counted)
            if watch is not None:
                watch.after_step(stepped)

    def added(owner: Any, param_group: dict[str, Any]) -> None:
        rate = param_group.get("lr")  # Adafactor may have none
        seen = hooks.member.tick is not None
        observer.build(owner, None if rate is None else float(rate), steps_are_seen=seen)

    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(after)
    wrap(optimizer.Optimizer, "add_param_group", added)  # last: it promises that steps are seen


def _change_rates(cls: Any, rates: Rates) -> Callable[[], bool]:
    """Change the rates for the length of each step, also of one that raises an exception.

    Only of the outermost step: ``ZeroRedundancyOptimizer`` copies the groups of the optimizer that
    it contains after that one's step, whose global hooks would come too early. Returns whether the
    present step is within another one.
    """
    add_hooks, depth = cls.profile_hook_step, 0  # torch wraps the step of every class with it

    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        step = add_hooks(func)

        @functools.wraps(step)
        def changed_step(stepping: Any, *args: Any, **options: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                if depth == 1:
                    rates.before(stepping)
                return step(stepping, *args, **options)
            finally:
                depth -= 1
                if depth == 0:
                    rates.after()

        return changed_step

    cls.profile_hook_step = staticmethod(profile_hook_step)
    return lambda: depth > 1
