"""Accelerate's ``Accelerator.log``, which passes metrics on to any tracker.

transformers' ``Trainer`` has an ``Accelerator``, too. Without a GPU, and without an option that
selects the CPU, both let every rank train a model of its own, even within a process group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.install import wrap

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks


def install(accelerator: ModuleType, hooks: Hooks) -> None:
    """Observe every call of ``log``, and whether the ranks train together."""
    log = hooks.reporter.log

    def look(built: Any, *_: Any, **__: Any) -> None:
        hooks.observer.is_separate = built.num_processes == 1

    wrap(accelerator.Accelerator, "log", lambda _self, values, *_, **__: log("accelerate", values))
    wrap(accelerator.Accelerator, "__init__", look)
