"""Lets the models of this process agree with those of the other ranks as the job file says."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Synced
from zeusrun.worker.sync.vote import Seconds, Vote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zeusrun.worker.environment import WorkerEnvironment
    from zeusrun.worker.sync.vote import Change
    from zeusrun.worker.sync.ways import Way

_MAX_STEPS = 10  # optimizer steps without a model, after which the user is warned


class SyncedModel:
    """A ``DistributedDataParallel`` that agrees in another way than by its backend's all-reduce.

    Args:
        ddp: The model.
        given: The section ``sync``.
        record: Called with the name of another way, and why it is used from now on.
    """

    def __init__(
        self, ddp: Any, given: Mapping[str, Any], record: Callable[[str, str], None]
    ) -> None:
        from zeusrun.worker.sync.ways import Ways  # noqa: PLC0415 - imports torch

        self._ways = Ways(ddp, given)
        self._record, self._steps = record, 0
        self._planned = self._ways.planned()  # the first of them is that of step 0
        self._way = self._planned.pop(0)[1]
        self._has_gradients = False  # since the last step
        self._seconds = Seconds()
        self._others = self._ways.others()
        self._vote: Vote | None = None
        if self._others:
            self._first = self._way
            self._vote = Vote(1 + len(self._others), self._ways.add_up, ddp.process_group.size())

    @property
    def is_mean(self) -> bool:
        """Whether gradients become their mean over the ranks."""
        return self._way.is_mean

    def hook(self, bucket: Any) -> Any:
        """Average a bucket; the communication hook of the model."""
        self._has_gradients = True
        if self._vote is None:
            return self._way.reduce(bucket)
        self._seconds.begin()
        return self._way.reduce(bucket).then(self._end)

    def _end(self, future: Any) -> Any:
        self._seconds.end()
        return future.value()

    def after_step(self) -> None:
        """Average parameters after an optimizer step, or after one that a ``GradScaler`` skips.

        The gradients may be infinite on one rank only, so an optimizer does not count the same on
        all; but each has had a backward pass.
        """
        if not self._has_gradients:
            return
        self._has_gradients = False
        self._steps += 1
        if self._way.average is not None:
            self._seconds.begin()
            self._way.average(self._steps)
            self._seconds.end()
        if self._planned and self._steps == self._planned[0][0]:
            self._go_on(self._planned.pop(0)[1])
        if self._vote is not None:
            change = self._vote.after_step(self._seconds.take())
            if change is not None:
                self._follow(change)

    def _follow(self, change: Change) -> None:
        self._go_on(self._first if change.way == 0 else self._others[change.way - 1]())
        if change.why:
            self._record(self._way.name, change.why)

    def _go_on(self, way: Way) -> None:
        """Agree in another way from now on, from the same parameters on all ranks."""
        if self._way.is_apart and not way.is_apart:
            self._ways.meet()
        self._way = way


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
        model = self._models[ddp] = SyncedModel(ddp, self._given, self._record)
        self._parameters[ddp] = {id(each) for each in ddp.parameters()}
        return model

    def has(self, ddp: Any) -> bool:
        """Whether a ``DistributedDataParallel`` agrees so."""
        return ddp in self._models

    def after_step(self, optimizer: Any = None) -> None:
        """Let those models agree that an optimizer trains; ``None``: whichever had gradients."""
        if optimizer is None:
            trained = list(self._models.values())
        else:
            self._steps += 1
            if self._steps == _MAX_STEPS and not self._models:
                self._record(
                    "", "", "sync needs DistributedDataParallel, which the script does not use"
                )
            stepped = {id(each) for group in optimizer.param_groups for each in group["params"]}
            trained = [m for ddp, m in self._models.items() if stepped & self._parameters[ddp]]
        for model in trained:
            model.after_step()

    def _record(self, how: str, why: str, problem: str | None = None) -> None:
        event = Synced(time.monotonic(), self._steps, how, why, problem)
        self._environment.record_on_0(event)
