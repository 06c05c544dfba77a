"""Weights & Biases: ``run.log``, offline too, whose files cannot be read from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.install import wrap

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks


def install(wandb_run: ModuleType, hooks: Hooks) -> None:
    """Observe every row."""
    log = hooks.reporter.log

    def log_row(_run: Any, data: dict[str, Any], *_: Any, **__: Any) -> None:
        log("wandb", data)

    wrap(wandb_run.Run, "log", log_row)
