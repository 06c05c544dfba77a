"""Lightning's ``Trainer``: a callback that comes through its entry points (pyproject.toml)."""

from __future__ import annotations

import functools
import importlib
import sys
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any

from zeusrun.worker.environment import StopPoll
from zeusrun.worker.hooks.install import Copyable, installed_hooks

if TYPE_CHECKING:
    from zeusrun.worker.environment import WorkerEnvironment
    from zeusrun.worker.hooks.install import Hooks


def _callbacks(package: str) -> list[Any]:
    """Return the callback for a package; none outside zeusrun."""
    hooks = installed_hooks()
    if hooks is None and "zeusrun.worker.hooks.child" not in sys.modules:
        return []
    library, problem = package.partition(".")[0], None
    try:
        callbacks = [_create(package, _Late if hooks is None else _LightningCallback, hooks)]
    except Exception as error:  # noqa: BLE001 - whatever the library has changed into
        callbacks, problem = [], f"{type(error).__name__}: {error}"
    if hooks is not None:
        hooks.record_hook(library, problem)
    return callbacks


def _create(package: str, first: type, hooks: Hooks | None = None) -> Any:
    """Return a callback: one of the library's own whose first base is a class of this module."""
    bases = (first, importlib.import_module(f"{package}.callbacks").Callback)
    return type("ZeusrunCallback", bases, {"package": package, "hooks": hooks, "last": {}})()


lightning_callbacks = functools.partial(_callbacks, "lightning.pytorch")
pytorch_lightning_callbacks = functools.partial(_callbacks, "pytorch_lightning")


class _Spawnable(Copyable):
    """A callback that a process which multiprocessing starts has, too."""

    package: str

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is None:
            return super().__reduce__()
        return _create, (self.package, _Pickled)


class _LightningCallback(_Spawnable):
    """Reports every validation; ends the training at the target and on a stop order."""

    hooks: Hooks
    last: dict[str, Any]  # the metrics of the last call
    poll: StopPoll | None = None  # while it trains

    def on_train_start(self, trainer: Any, _module: Any) -> None:
        ranks = self.hooks.environment.world_size
        if trainer.world_size != ranks:  # the others have no hook: they would wait for this one
            raise RuntimeError(
                f"zeusrun: Lightning trains on {trainer.world_size} processes and zeusrun has "
                f"started {ranks}: write  launch: {{nproc_per_node: {trainer.world_size}}}  and "
                "remove distributed: false"
            )
        _accumulate(trainer, self.hooks.environment)
        self.poll = StopPoll(self.hooks.environment)

    def on_train_epoch_start(self, trainer: Any, _module: Any) -> None:
        # At the end of an epoch, the module logs after the callbacks have run.
        if trainer.current_epoch:
            self._log(trainer, trainer.current_epoch)

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        if self.poll is not None and self.poll.after_step():
            trainer.should_stop = True

    def on_validation_start(self, trainer: Any, _module: Any) -> None:
        if self.poll is not None and not trainer.sanity_checking:
            self.hooks.end_epoch()

    def on_validation_end(self, trainer: Any, _module: Any) -> None:
        if trainer.sanity_checking:  # before training, so it does not count
            return
        # Lightning counts from 0. Outside a training, no epoch has begun.
        self._log(trainer, trainer.current_epoch + (self.poll is not None))

    def on_train_epoch_end(self, trainer: Any, _module: Any) -> None:
        self.hooks.end_epoch()
        self._log(trainer, trainer.current_epoch + 1)
        last = self.hooks.environment.plan.max_epochs
        stop = self.poll is not None and self.poll.now()
        if stop or (last is not None and trainer.current_epoch + 1 >= last):
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, _module: Any) -> None:
        self.poll = None
        self._log(trainer, trainer.current_epoch)

    def _log(self, trainer: Any, epoch: int) -> None:
        """Report the values that are new since the last call; old ones belong to other epochs."""
        metrics = dict(trainer.callback_metrics)
        last, self.last = self.last, metrics
        new = {name: raw for name, raw in metrics.items() if not _is_same(raw, last.get(name))}
        self.hooks.reporter.log(self.package.partition(".")[0], new, epoch)


class _Late(_Spawnable):
    """In the trainer of a process that has no hooks before it joins its process group."""

    is_recorded = False  # that Lightning has a hook

    def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Make way for the callback: Lightning has joined the group."""
        if (hooks := installed_hooks()) is not None:
            callback = _create(self.package, _LightningCallback, hooks)
            others = trainer.callbacks
            trainer.callbacks[:] = [callback if each is self else each for each in others]
            if not self.is_recorded:
                hooks.record_hook(self.package.partition(".")[0])


class _Pickled(_Late):
    """In a trainer that a process has got from its parent, as with ``strategy="ddp_spawn"``."""

    is_recorded = True


def _accumulate(trainer: Any, environment: WorkerEnvironment) -> None:
    """Accumulate gradients if the loader has micro-batches, and the script does not accumulate."""
    steps, share = environment.plan.accumulation_steps or 1, environment.share
    size = getattr(trainer.train_dataloader, "batch_size", None)
    has_micro_batches = steps > 1 and share is not None and size == share // steps
    if has_micro_batches and trainer.accumulate_grad_batches == 1:
        trainer.accumulate_grad_batches = steps


def _is_same(value: Any, before: Any) -> bool:
    """Whether two tensors share their storage: Lightning detaches the same value at each call."""
    places = [getattr(each, "data_ptr", None) for each in (value, before)]
    return value is before or (all(places) and len({place() for place in places if place}) == 1)
