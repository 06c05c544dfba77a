"""Ultralytics' trainers: reports every epoch; ends the training at the target and on a stop order.

It observes ``run_callbacks`` instead of adding a callback: a script may replace the callbacks, and
a trainer that starts ranks of its own pickles them.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from zeusrun.worker.environment import StopPoll
from zeusrun.worker.hooks.imports import wrap

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks

SOURCE = "ultralytics"


def install(trainer: ModuleType, hooks: Hooks) -> None:
    """Follow the events of every trainer."""
    if hooks.environment.world_size == 1:
        _train_alone()
    follower = _Follower(hooks)

    def follow(trainer: Any, event: str) -> None:
        if (method := getattr(follower, event, None)) is not None:
            method(trainer)

    def look(trainer: Any, *_: Any, **__: Any) -> None:
        if getattr(trainer, "ddp", False):
            problem = "it starts its ranks itself; set launch.nproc_per_node instead"
            hooks.record_hook(SOURCE, problem)

    wrap(trainer.BaseTrainer, "run_callbacks", follow)
    wrap(trainer.BaseTrainer, "__init__", look)


def _train_alone() -> None:
    """Let versions before 8.4.190 train on a single rank of torchrun.

    They take ``RANK=0`` for one of several ranks, and fail without a process group.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("ultralytics."):
            ranks = [each for each in ("RANK", "LOCAL_RANK") if vars(module).get(each) == 0]
            vars(module).update(dict.fromkeys(ranks, -1))


class _Follower:
    """Has a method for each event that matters, with the name of Ultralytics' callback."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._poll = StopPoll(hooks.environment)
        self._before: Any = None  # the metrics at the beginning of the epoch
        self._in_epoch = False

    def on_train_start(self, _trainer: Any) -> None:
        self._poll = StopPoll(self._hooks.environment)

    def on_train_epoch_start(self, trainer: Any) -> None:
        self._before, self._in_epoch = trainer.metrics, True

    def on_train_batch_end(self, trainer: Any) -> None:
        if self._poll.after_step():
            trainer.stop = True

    def on_train_epoch_end(self, trainer: Any) -> None:
        """Begin another pass: one iterator of the loader yields all epochs."""
        observer, loader = self._hooks.observer, trainer.train_loader
        self._hooks.end_epoch()
        ended = loader.iterator._zeusrun
        observer.end_pass(ended)
        loader.iterator._zeusrun = observer.begin_pass(loader)
        loader.iterator._zeusrun.pending = ended.pending  # accumulation goes on

    def on_fit_epoch_end(self, trainer: Any) -> None:
        if not self._in_epoch:  # the evaluation of the best model, at the end
            return
        self._in_epoch = False
        with contextlib.suppress(Exception):  # the other ranks wait below
            self._log(trainer)
        last = self._hooks.environment.plan.max_epochs
        if self._poll.now() or (last is not None and trainer.epoch + 1 >= last):
            trainer.stop = True
        # The loggers also get the evaluation of the best model, which is not an epoch.
        self._hooks.reporter.muted = bool(trainer.stop)

    def teardown(self, _trainer: Any) -> None:
        self._hooks.reporter.muted = False

    def _log(self, trainer: Any) -> None:
        """Report what Ultralytics writes to ``results.csv``, but no evaluation a second time."""
        if self._hooks.environment.rank != 0:
            return
        new = {} if trainer.metrics is self._before else trainer.metrics
        losses = trainer.label_loss_items(trainer.tloss, prefix="train")
        self._hooks.reporter.log(SOURCE, {**losses, **new, **trainer.lr}, trainer.epoch + 1)
