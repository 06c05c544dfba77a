"""Libraries that a script passes its metrics to, which are observed; and torchft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.imports import wrap

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks


def accelerate(accelerator: ModuleType, hooks: Hooks) -> None:
    """Observe ``Accelerator.log``, which passes metrics on to any tracker.

    Also whether the ranks train together. transformers' ``Trainer`` has an ``Accelerator``, too.
    Without a GPU, and without an option that selects the CPU, both let every rank train a model of
    its own, even within a process group.
    """
    log = hooks.reporter.log

    def look(built: Any, *_: Any, **__: Any) -> None:
        hooks.observer.is_separate = built.num_processes == 1

    wrap(accelerator.Accelerator, "log", lambda _self, values, *_, **__: log("accelerate", values))
    wrap(accelerator.Accelerator, "__init__", look)


def mlflow(fluent: ModuleType, hooks: Hooks) -> None:
    """Observe MLflow's ``log_metric`` and ``log_metrics``."""
    log = hooks.reporter.log
    fluent.log_metric, fluent.log_metrics  # noqa: B018 - both or none
    wrap(fluent, "log_metric", lambda key, value, *_, **__: log("mlflow", {key: value}))
    wrap(fluent, "log_metrics", lambda metrics, *_, **__: log("mlflow", metrics))


def tensorboard(writer: ModuleType, hooks: Hooks) -> None:
    """Observe ``SummaryWriter.add_scalar``, that of torch and of tensorboardX.

    TensorBoard's files arrive up to 120 s late.
    """
    log = hooks.reporter.log
    wrap(
        writer.SummaryWriter,
        "add_scalar",
        lambda _self, tag, scalar_value, *_, **__: log("tensorboard", {tag: scalar_value}),
    )


def timm(summary: ModuleType, hooks: Hooks) -> None:
    """Observe ``update_summary``, which timm's training script calls after every epoch.

    The names are those of ``summary.csv``; timm counts epochs from 0.
    """

    def update_summary(
        epoch: int,
        train_metrics: dict[str, Any],
        eval_metrics: dict[str, Any] | None,
        *_: Any,
        **__: Any,
    ) -> None:
        parts = (("train", train_metrics), ("eval", eval_metrics or {}))
        row = {f"{part}_{name}": raw for part, values in parts for name, raw in values.items()}
        hooks.reporter.log("timm", row, epoch + 1)

    wrap(summary, "update_summary", update_summary)


def wandb(wandb_run: ModuleType, hooks: Hooks) -> None:
    """Observe Weights & Biases' ``run.log``, offline too, whose files Python cannot read."""
    log = hooks.reporter.log
    wrap(wandb_run.Run, "log", lambda _run, data, *_, **__: log("wandb", data))


def torchft(module: ModuleType, hooks: Hooks) -> None:
    """Take a rank with a ``Manager`` for one of a group.

    Not only with a quorum: the first one of DiLoCo comes after many steps.
    """

    def join(*_: object, **__: object) -> None:
        hooks.environment.look_for_groups()  # a replica group of several ranks has one, too
        hooks.environment.grouped = True

    wrap(module.Manager, "__init__", join)
