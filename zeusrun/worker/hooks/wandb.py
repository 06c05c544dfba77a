"""Weights & Biases: ``run.log``, offline too, whose files cannot be read from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.worker.hooks.install import wrap

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks


def install(wandb_run: ModuleType, hooks: Hooks) -> None:
    """Observe every row."""
    log = hooks.reporter.log
    wrap(wandb_run.Run, "log", lambda _run, data, *_, **__: log("wandb", data))
