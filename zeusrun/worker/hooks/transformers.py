"""transformers' ``Trainer``, and what builds on it (TRL, SetFit): adds a default callback.

``DEFAULT_CALLBACKS`` is private; every ``Trainer`` begins with these callbacks.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

from zeusrun.worker.environment import StopPoll
from zeusrun.worker.hooks.imports import replaces
from zeusrun.worker.hooks.install import Copyable

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.environment import WorkerEnvironment
    from zeusrun.worker.hooks.install import Hooks


def install(trainer: ModuleType, hooks: Hooks) -> None:
    """Add the callback to every ``Trainer``; split batches that are too large for a device."""
    bases = (_TransformersCallback, trainer.TrainerCallback)
    trainer.DEFAULT_CALLBACKS.append(type("ZeusrunCallback", bases, {"hooks": hooks}))
    original = trainer.Trainer.__init__

    @replaces(trainer.Trainer, "__init__")
    def init(self: Any, *args: Any, **options: Any) -> None:
        with contextlib.suppress(Exception):  # unknown arguments stay as they are
            split_batch(options["args"] if "args" in options else args[1], hooks.environment)
        original(self, *args, **options)


def split_batch(arguments: Any, environment: WorkerEnvironment) -> None:
    """Accumulate gradients if this rank's share of the batch exceeds ``per_device_max``.

    ``TrainingArguments`` with another batch size or with accumulation stay unchanged.
    """
    share, steps = environment.share, environment.plan.accumulation_steps or 1
    if (
        share is not None
        and steps > 1
        and arguments.per_device_train_batch_size == share
        and arguments.gradient_accumulation_steps == 1
        and not getattr(arguments, "deepspeed", None)  # its configuration has copied both
    ):
        arguments.per_device_train_batch_size = share // steps
        arguments.gradient_accumulation_steps = steps


class _TransformersCallback(Copyable):
    """Reports every evaluation; ends the training at the target and on a stop order.

    Every rank evaluates and steps together, so every rank gets here at the same time.
    """

    hooks: Hooks
    poll: StopPoll | None = None  # while it trains

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.poll = StopPoll(self.hooks.environment)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.poll = None

    def on_step_end(self, args: Any, _state: Any, control: Any, **_: Any) -> None:
        if self.poll is not None and self.poll.after_step():
            _stop(args, control)

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        # on_evaluate gets the values of an evaluation, too.
        if logs and not any(name.startswith("eval_") for name in logs):
            self._log(logs, state)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any
    ) -> None:
        self._log(metrics or {}, state)
        if self.poll is not None and self.poll.now():
            _stop(args, control)

    def on_epoch_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        self.hooks.end_epoch()
        last = self.hooks.environment.plan.max_epochs
        if last is not None and _epochs(state) >= last:
            control.should_training_stop = True

    def _log(self, metrics: dict[str, Any], state: Any) -> None:
        values = {name: value for name, value in metrics.items() if name != "epoch"}
        self.hooks.reporter.log("transformers", values, _epochs(state))


def _epochs(state: Any) -> int:
    """Return the epochs begun: accumulation may leave a rest of the last one without a step."""
    return max(0, math.ceil((state.epoch or 0) - 1e-6))


def _stop(args: Any, control: Any) -> None:
    control.should_training_stop = True
    if str(getattr(args.save_strategy, "value", args.save_strategy)) != "no":
        control.should_save = True
