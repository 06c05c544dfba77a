"""TensorBoard's ``SummaryWriter.add_scalar``, that of torch and of tensorboardX.

Its files arrive up to 120 s late, so the call itself is observed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.worker.hooks.install import wrap

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks


def install(writer: ModuleType, hooks: Hooks) -> None:
    """Observe every scalar."""
    log = hooks.reporter.log
    wrap(
        writer.SummaryWriter,
        "add_scalar",
        lambda _self, tag, scalar_value, *_, **__: log("tensorboard", {tag: scalar_value}),
    )
