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
        from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415 - is imported

        schedulers = _Schedulers(hooks)
        for each in (module.LRScheduler, module.SequentialLR):
            wrap(each, "__init__", lambda scheduler, *_, **__: schedulers.built.add(scheduler))
        register_optimizer_step_post_hook(schedulers.look)


class _Schedulers:
    def __init__(self, hooks: Hooks) -> None:
        self._environment, self._observer = hooks.environment, hooks.observer
        self.built: weakref.WeakSet[Any] = weakref.WeakSet()
        self._first: dict[int, int] = {}  # how far each was after ``_FIRST`` steps, by its id
        self._batches = 1  # of the loader in an optimizer step
        self._ended = False

    def look(self, *_: Any) -> None:
        """Look how far they are after a step of an optimizer."""
        steps, current = self._observer.steps, self._observer.current
        if self._ended or steps < _FIRST:
            return
        self._batches = (current and current.last.batches) or self._batches
        self._ended = steps >= _LAST
        with contextlib.suppress(Exception):  # a scheduler of the script's own
            if steps == _FIRST:
                self._first = {id(each): each.last_epoch for each in self.built}
            elif self._ended:
                self._record(steps)

    def _record(self, steps: int) -> None:
        feed, first = self._observer.training, self._first
        batches = None if feed is None else feed.length
        parts = {id(part) for each in self.built for part in getattr(each, "_schedulers", ())}
        for each in self.built if batches else ():
            length = _length(each)
            times = (each.last_epoch - first.get(id(each), each.last_epoch)) / (steps - _FIRST)
            if length and times >= 1 and id(each) not in parts:
                # It may step several times: accelerate's does so for each rank.
                ends, epoch = round(length / times), math.ceil((batches or 0) / self._batches)
                name = type(each).__name__
                self._environment.record(Scheduled(time.monotonic(), name, ends, epoch))


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
