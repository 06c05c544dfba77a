"""MLflow's ``log_metric`` and ``log_metrics``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.worker.hooks.install import wrap

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks


def install(fluent: ModuleType, hooks: Hooks) -> None:
    """Observe both functions."""
    log = hooks.reporter.log
    fluent.log_metric, fluent.log_metrics  # noqa: B018 - both or none
    wrap(fluent, "log_metric", lambda key, value, *_, **__: log("mlflow", {key: value}))
    wrap(fluent, "log_metrics", lambda metrics, *_, **__: log("mlflow", metrics))
