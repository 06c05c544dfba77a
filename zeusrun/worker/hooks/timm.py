"""timm's ``update_summary``, which its training script calls after every epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.install import wrap

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks


def install(summary: ModuleType, hooks: Hooks) -> None:
    """Observe every row, under the names of ``summary.csv``; timm counts epochs from 0."""
    log = hooks.reporter.log

    def update_summary(
        epoch: int,
        train_metrics: dict[str, Any],
        eval_metrics: dict[str, Any] | None,
        *_: Any,
        **__: Any,
    ) -> None:
        parts = (("train", train_metrics), ("eval", eval_metrics or {}))
        row = {f"{part}_{name}": raw for part, values in parts for name, raw in values.items()}
        log("timm", row, epoch + 1)

    wrap(summary, "update_summary", update_summary)
