"""Records after how many optimizer steps a learning-rate schedule of a fixed length ends.

With another batch size an epoch has another number of steps, but the schedule may not know.
"""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Scheduled
from zeusrun.worker.hooks.imports import wrap

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks

_FIRST, _LAST = 2, 6  # optimizer steps between which it is seen whether a scheduler steps, too
_LENGTHS = {
    "CosineAnnealingLR": "T_max",
    "OneCycleLR": "total_steps",
    "PolynomialLR": "total_iters",
}


def install(module: ModuleType, hooks: Hooks) -> None:
    """Look at the schedulers of rank 0 in its first steps (``torch.optim.lr_scheduler``)."""
    if hooks.environment.rank == 0:
        schedulers = _Schedulers(hooks)
        wrap(module.LRScheduler, "__init__", schedulers.add)
        wrap(module.SequentialLR, "__init__", schedulers.add)


class _Schedulers:
    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._built: weakref.WeakSet[Any] = weakref.WeakSet()
        self._first: dict[int, int] = {}  # how far each was after ``_FIRST`` steps, by its id
        self._batches = 1  # of the loader in an optimizer step
        self._looks: bool | None = None  # ``None``: not yet

    def add(self, scheduler: Any, *_: Any, **__: Any) -> None:
        """Take in a new scheduler."""
        if self._looks is None:
            from torch.optim.optimizer import (  # noqa: PLC0415 - is imported
                register_optimizer_step_post_hook,
            )

            self._looks = True
            register_optimizer_step_post_hook(self._look)
        if self._looks:
            self._built.add(scheduler)

    def _look(self, *_: Any) -> None:
        steps, current = self._hooks.observer.steps, self._hooks.observer.current
        if not self._looks or steps < _FIRST:
            return
        if current is not None and current.batches:
            self._batches = current.batches
        with contextlib.suppress(Exception):  # a scheduler of the script's own
            if steps >= _LAST:
                self._looks = False
                self._record(steps)
            elif steps == _FIRST:
                self._first = {id(each): each.last_epoch for each in self._built}

    def _record(self, steps: int) -> None:
        environment, feed = self._hooks.environment, self._hooks.observer.training
        if feed is None or feed.length is None:
            return
        epoch = math.ceil(feed.length / self._batches)
        parts = {id(part) for each in self._built for part in getattr(each, "_schedulers", ())}
        for scheduler in self._built:
            length, first = _length(scheduler), self._first.get(id(scheduler))
            if length is None or first is None or id(scheduler) in parts:
                continue
            times = (scheduler.last_epoch - first) / (steps - _FIRST)
            if times >= 1:  # or more: accelerate's step once for each rank
                name, ends = type(scheduler).__name__, round(length / times)
                environment.record(Scheduled(time.monotonic(), name, ends, epoch))


def _length(scheduler: Any) -> int | None:
    """Return the steps of a scheduler; ``None`` if it goes on without an end, or is not known."""
    if parts := getattr(scheduler, "_schedulers", None):
        last, before = _length(parts[-1]), getattr(scheduler, "_milestones", ())
        return None if last is None else last + (before[-1] if before else 0)
    for function in getattr(scheduler, "lr_lambdas", ()):  # those of transformers
        if steps := getattr(function, "keywords", {}).get("num_training_steps"):
            return int(steps)
    length = getattr(scheduler, _LENGTHS.get(type(scheduler).__name__, ""), None)
    return length if type(length) is int else None
