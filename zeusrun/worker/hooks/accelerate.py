"""Accelerate's ``Accelerator.log``, which passes metrics on to any tracker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.install import wrap

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks


def install(accelerator: ModuleType, hooks: Hooks) -> None:
    """Observe every call."""
    log = hooks.reporter.log

    def log_values(_accelerator: Any, values: dict[str, Any], *_: Any, **__: Any) -> None:
        log("accelerate", values)

    wrap(accelerator.Accelerator, "log", log_values)
