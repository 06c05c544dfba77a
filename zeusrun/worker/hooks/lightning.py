"""Lightning's ``Trainer``: a callback that comes through its entry points (pyproject.toml)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.install import installed_hooks
from zeusrun.worker.hooks.stop_poll import StopPoll

if TYPE_CHECKING:
    from zeusrun.worker.hooks.install import Hooks


def lightning_callbacks() -> list[Any]:
    """Return the callbacks for ``lightning.pytorch``; none outside zeusrun."""
    return _callbacks("lightning.pytorch")


def pytorch_lightning_callbacks() -> list[Any]:
    """Return the callbacks for ``pytorch_lightning``; none outside zeusrun."""
    return _callbacks("pytorch_lightning")


def _callbacks(package: str) -> list[Any]:
    hooks = installed_hooks()
    if hooks is None:
        return []
    library = package.partition(".")[0]
    try:
        bases = (_Callback, importlib.import_module(f"{package}.callbacks").Callback)
        callback = type("ZeusrunCallback", bases, {"hooks": hooks, "library": library})()
    except Exception as error:  # noqa: BLE001 - whatever the library has changed into
        hooks.say(library, f"{type(error).__name__}: {error}")
        return []
    hooks.say(library)
    return [callback]


class _Callback:
    """Reports every validation; ends the training at the target and on a stop order."""

    hooks: Hooks
    library: str
    poll: StopPoll

    def on_train_start(self, _trainer: Any, _module: Any) -> None:
        self.poll = StopPoll(self.hooks.run)

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        if self.poll.after_step():
            trainer.should_stop = True

    def on_validation_end(self, trainer: Any, _module: Any) -> None:
        if trainer.sanity_checking:  # before training; it is no epoch
            return
        self._log(trainer)
        if trainer.training and self.poll.now():
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Any, _module: Any) -> None:
        self._log(trainer)
        last = self.hooks.run.max_epochs
        if self.poll.now() or (last is not None and trainer.current_epoch + 1 >= last):
            trainer.should_stop = True

    def _log(self, trainer: Any) -> None:
        epoch = trainer.current_epoch + 1  # Lightning counts from 0
        self.hooks.reporter.log(self.library, trainer.callback_metrics, epoch)
