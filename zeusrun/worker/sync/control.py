"""Lets the models of this process agree with those of the other ranks as the job file says."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Synced

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zeusrun.worker.environment import WorkerEnvironment

_MAX_STEPS = 10  # optimizer steps without a model, after which the user is warned


class SyncedModel:
    """A ``DistributedDataParallel`` that agrees in another way than by its backend's all-reduce.

    Args:
        ddp: The model.
        given: The section ``sync``.

    Attributes:
        reduce: Returns a future of the mean of a bucket, or what else becomes the gradient.
        is_mean: Whether that is the mean over the ranks.
    """

    def __init__(self, ddp: Any, given: Mapping[str, Any]) -> None:
        from zeusrun.worker.sync import averaging, reduce  # noqa: PLC0415 - they import torch

        self._group = group = ddp.process_group
        self._given, self._steps = given, 0
        self._has_gradients = False  # since the last step
        self._parameters = averaging.Parameters(ddp.module)
        self._average, self._all_reduce = averaging.average, reduce.all_reduce(group)
        self._local: Callable[[Any], Any] = lambda bucket: reduce.done(bucket.buffer())
        self._pairs: averaging.Pairs | None = None
        compress, self.is_mean = given["compress"], True
        if compress in {"bf16", "fp16"}:
            self.reduce = reduce.compressed(group, compress)
        elif compress == "powersgd":
            self.reduce, self.is_mean = (
                reduce.power_sgd(group, given["rank"], given["warmup"]),
                False,
            )
        elif given["topology"] is not None:
            self.reduce = reduce.along(given["topology"], group)
        elif given["method"] is not None:
            self.reduce, self.is_mean = self._local, False
            if given["method"] == "pair":
                ddp.broadcast_buffers = False  # it would wait for rank 0 in each forward pass
                self._pairs = averaging.Pairs(self._parameters, group)
        else:
            self.reduce = self._all_reduce

    def hook(self, bucket: Any) -> Any:
        """Average a bucket; the communication hook of the model."""
        self._has_gradients = True
        return self.reduce(bucket)

    def after_step(self) -> None:
        """Average parameters after an optimizer step, or after one that a ``GradScaler`` skips.

        The gradients may be infinite on one rank only, so an optimizer does not count the same on
        all; but each has had a backward pass.
        """
        if not self._has_gradients:
            return
        self._has_gradients = False
        self._steps += 1
        every, method, switch_at = (self._given[key] for key in ("every", "method", "switch_at"))
        if every is not None:
            past = self._steps - self._given["warmup"]
            if past >= 0:
                self.reduce, self.is_mean = self._local, False
            if past > 0 and past % every == 0:
                self._average(self._parameters, self._group)
        elif self._pairs is not None:
            self._pairs.step()
        elif method == "sma" and (switch_at is None or self._steps <= switch_at):
            is_last = self._steps == switch_at
            self._average(self._parameters, self._group, 1.0 if is_last else self._given["alpha"])
            if is_last:
                self.reduce, self.is_mean = self._all_reduce, True


class SyncedModels:
    """The models of this process that agree as the section ``sync`` says.

    Args:
        environment: This rank.
        given: The section ``sync``.
    """

    def __init__(self, environment: WorkerEnvironment, given: Mapping[str, Any]) -> None:
        self._environment, self._given, self._steps = environment, given, 0
        self._models: weakref.WeakKeyDictionary[Any, SyncedModel] = weakref.WeakKeyDictionary()
        self._parameters: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()

    def attach(self, ddp: Any) -> SyncedModel | None:
        """Let a ``DistributedDataParallel`` agree so; return ``None`` if it has a single rank."""
        if ddp.process_group.size() == 1:
            return None
        model = self._models[ddp] = SyncedModel(ddp, self._given)
        self._parameters[ddp] = {id(each) for each in ddp.parameters()}
        return model

    def has(self, ddp: Any) -> bool:
        """Whether a ``DistributedDataParallel`` agrees so."""
        return ddp in self._models

    def after_step(self, optimizer: Any = None) -> None:
        """Let those models agree that an optimizer trains; ``None``: whichever had gradients."""
        self._steps += optimizer is not None
        if not self._models and self._steps == _MAX_STEPS and optimizer is not None:
            self.warn("the script makes no DistributedDataParallel; sync needs one")
        groups = [] if optimizer is None else optimizer.param_groups
        stepped = {id(each) for group in groups for each in group["params"][:1]}
        for ddp, model in list(self._models.items()):
            if optimizer is None or stepped & self._parameters[ddp]:
                model.after_step()

    def warn(self, problem: str) -> None:
        """Record once why the ranks do not agree as the job file says."""
        self._environment.record_on_0(Synced(time.monotonic(), self._steps, "", "", problem))
