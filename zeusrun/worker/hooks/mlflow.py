"""MLflow's ``log_metric`` and ``log_metrics``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.install import wrap

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks


def install(fluent: ModuleType, hooks: Hooks) -> None:
    """Observe both functions."""
    log = hooks.reporter.log

    def log_metric(key: str, value: Any, *_: Any, **__: Any) -> None:
        log("mlflow", {key: value})

    def log_metrics(metrics: dict[str, Any], *_: Any, **__: Any) -> None:
        log("mlflow", metrics)

    fluent.log_metric, fluent.log_metrics  # noqa: B018 - both or none
    wrap(fluent, "log_metric", log_metric)
    wrap(fluent, "log_metrics", log_metrics)
