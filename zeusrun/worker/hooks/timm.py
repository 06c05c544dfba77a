"""timm's ``update_summary``, which its ``train.py`` calls after every epoch to write a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.install import wrap

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks


def install(summary: ModuleType, hooks: Hooks) -> None:
    """Observe every row, whose epochs count from 0."""
    log = hooks.reporter.log

    def log_row(
        epoch: int, train: dict[str, Any], evaluation: dict[str, Any] | None, *_: Any, **__: Any
    ) -> None:
        parts = {"train": train, "eval": evaluation or {}}
        row = {f"{part}_{name}": raw for part, raws in parts.items() for name, raw in raws.items()}
        log("timm", row, epoch + 1)

    wrap(summary, "update_summary", log_row)
