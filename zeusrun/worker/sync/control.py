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

_MAX_STEPS = 10  # optimizer steps without a model, after which the user is warned


class SyncedModel:
    """A ``DistributedDataParallel`` that agrees in another way than by its backend's all-reduce.

    Args:
        ddp: The model.
        given: The section ``sync``.
        record: Called with the name of another way, and why it is used from now on.

    Raises:
        RuntimeError: If the model cannot agree so.
    """

    def __init__(
        self, ddp: Any, given: Mapping[str, Any], record: Callable[[str, str], None]
    ) -> None:
        from zeusrun.worker.sync.ways import Ways  # noqa: PLC0415 - imports torch

        ways = Ways(ddp, given)
        self._record = record
        self._way = self._first = ways.planned()
        self._others = ways.others()
        self._begins = True  # whether the next bucket is the first one of a backward pass
        self._seconds = Seconds()
        self._vote: Vote | None = None
        if self._others:
            self._vote = Vote(1 + len(self._others), ways.add_up, ddp.process_group.size())

    @property
    def is_mean(self) -> bool:
        """Whether gradients become their mean over the ranks."""
        return self._way.is_mean

    def hook(self, bucket: Any) -> Any:
        """Average a bucket; the communication hook of the model."""
        if self._vote is None:
            return self._way.reduce(bucket)
        if self._begins:
            self._take_vote(self._vote)
        self._begins = bucket.is_last()
        self._seconds.begin()
        return self._way.reduce(bucket).then(self._end)

    def _end(self, future: Any) -> Any:
        self._seconds.end()
        return future.value()

    def _take_vote(self, vote: Vote) -> None:
        """Vote before a backward pass, of which all ranks have equally many."""
        seconds = self._seconds.take()
        # ``None`` on all ranks or on none: each pass counts, however short it was on this one.
        change = None if seconds is None else vote.after_pass(seconds)
        if change is not None:
            self._way = self._first if change.way == 0 else self._others[change.way - 1]()
            if change.why:
                self._record(self._way.name, change.why)


class SyncedModels:
    """The models of this process that agree as the section ``sync`` says.

    Args:
        environment: This rank.
        given: The section ``sync``.
    """

    def __init__(self, environment: WorkerEnvironment, given: Mapping[str, Any]) -> None:
        self._environment, self._given, self._steps = environment, given, 0
        self._models: weakref.WeakKeyDictionary[Any, SyncedModel] = weakref.WeakKeyDictionary()

    def build(self, ddp: Any) -> SyncedModel | None:
        """Return how a ``DistributedDataParallel`` agrees; ``None`` if it has a single rank."""
        if ddp.process_group.size() == 1:
            return None
        return SyncedModel(ddp, self._given, self._record)

    def add(self, ddp: Any, model: SyncedModel) -> None:
        """Keep a model whose communication hook is registered."""
        self._models[ddp] = model

    def has(self, ddp: Any) -> bool:
        """Whether a ``DistributedDataParallel`` agrees so."""
        return ddp in self._models

    def after_step(self) -> None:
        """Count an optimizer step; warn the user if no model agrees as the job file says."""
        self._steps += 1
        if self._steps == _MAX_STEPS and not self._models:
            self._record(
                "", "", "sync needs DistributedDataParallel, which the script does not use"
            )

    def _record(self, how: str, why: str, problem: str | None = None) -> None:
        event = Synced(time.monotonic(), self._steps, how, why, problem)
        self._environment.record_on_0(event)
