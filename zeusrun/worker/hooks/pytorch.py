"""Observes torch itself: optimizer steps, backward passes, data loaders and schedulers."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
import weakref
from threading import get_ident
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Scheduled
from zeusrun.worker.hooks.apply import apply_batch_size, apply_learning_rate
from zeusrun.worker.hooks.imports import replaces, wrap
from zeusrun.worker.passes import Feed, Pass

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from zeusrun.worker.agent import Rates
    from zeusrun.worker.hooks.install import Hooks
    from zeusrun.worker.hooks.observer import Observer

_FIRST, _LAST = 2, 6  # optimizer steps between which it is seen whether a scheduler steps, too
_LENGTHS = {
    "CosineAnnealingLR": "T_max",
    "OneCycleLR": "total_steps",
    "PolynomialLR": "total_iters",
}


def optimizer(module: ModuleType, hooks: Hooks) -> None:
    """Count optimizer steps (torch.optim.optimizer.register_optimizer_step_pre_hook).

    A subclass that calls ``super().step()`` fires the hooks twice: pre, pre, post, post. A step is
    a post that follows a pre, so it counts once. A step that raises does not count. Where another
    optimizer steps within a step (the outer one of DiLoCo, by torchft), the step is that of the
    first one.
    """
    given = hooks.environment.plan.given_learning_rate
    if given is not None:
        apply_learning_rate(module, hooks.environment, given, hooks.training)
    rates, entered = hooks.rates, False
    first: Any = None
    is_nested = _change_rates(module.Optimizer, rates) if rates is not None else lambda: False
    observer, agents = hooks.observer, hooks.environment.agents

    def before(stepping: Any, *_: Any) -> None:
        nonlocal entered, first
        first = first if entered else stepping
        entered = True
        for agent in agents:
            agent.before_step()

    def after(stepped: Any, *_: Any) -> None:
        nonlocal entered, first
        if entered and not is_nested():
            outermost, first, entered = first, None, False
            if rates is not None:
                rates.after()  # before anything reads the learning rates
            if outermost is not stepped and not observer.has_rate(outermost):
                outermost = stepped
            _take_step(hooks, outermost, stepped)

    def added(owner: Any, param_group: dict[str, Any]) -> None:
        rate = param_group.get("lr")  # Adafactor may have none
        for agent in agents:
            agent.build(owner)
        seen = hooks.member.clock is not None
        observer.build(owner, None if rate is None else float(rate), steps_are_seen=seen)

    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)
    wrap(module.Optimizer, "add_param_group", added)  # last: it promises that steps are seen


def _take_step(hooks: Hooks, outermost: Any, stepped: Any) -> None:
    """Pass a step to the observer and the agents.

    ``stepped`` is ``outermost``, or an optimizer that steps within a step of ``outermost``.
    """
    observer, agents = hooks.observer, hooks.environment.agents
    for agent in agents:
        agent.after_step()
    if not hooks.member.counts():
        return
    counted = True
    try:
        counted = observer.step(outermost)
    finally:
        numbers = observer.consumed or 0, observer.epoch or 0, observer.others
        if (clock := hooks.member.clock) is not None:
            clock.tick(*numbers, counts=counted)
            if observer.waits_s is not clock.waits_s:
                observer.count_waits(clock.waits_s)
    for agent in agents:
        agent.count_step(stepped)


def backward(autograd: Any, hooks: Hooks) -> None:
    """Mark the backward passes of a training until it builds an optimizer.

    It replaces a private function of torch 2.4 to 2.13, which ``backward`` and ``grad`` call.
    """
    run, pid, inside = autograd._engine_run_backward, os.getpid(), False
    observer, member = hooks.observer, hooks.member

    @replaces(autograd, "_engine_run_backward")
    def run_backward(*args: Any, **options: Any) -> Any:
        nonlocal inside
        if observer.has_optimizer:
            autograd._engine_run_backward = run
        if inside or observer.has_optimizer or os.getpid() != pid:
            return run(*args, **options)
        inside = True  # a checkpoint of activations runs another one within
        try:
            gradients = run(*args, **options)
        finally:
            inside = False
        if member.clock is not None:
            member.clock.tick(counts=False)
        return gradients


def _change_rates(cls: Any, rates: Rates) -> Callable[[], bool]:
    """Change the rates for the length of each step, also of one that raises an exception.

    Only of the outermost step: ``ZeroRedundancyOptimizer`` copies the groups of the optimizer that
    it contains after that one's step, whose global hooks would come too early. Returns whether the
    present step is within another one.
    """
    add_hooks, depth = cls.profile_hook_step, 0  # torch wraps the step of every class with it

    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        step = add_hooks(func)

        @functools.wraps(step)
        def changed_step(stepping: Any, *args: Any, **options: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                if depth == 1:
                    rates.before(stepping)
                return step(stepping, *args, **options)
            finally:
                depth -= 1
                if depth == 0:
                    rates.after()

        return changed_step

    cls.profile_hook_step = staticmethod(profile_hook_step)
    return lambda: depth > 1


def loader(dataloader: ModuleType, hooks: Hooks) -> None:
    """Observe the batches of data loaders: how many samples, and when a pass begins and ends.

    It replaces four methods of the iterators' base class, all of them or none. That class is
    private, the same in torch 2.4 to 2.13. Batch sizes come from the batch sampler's lists of
    indices, because transformers' loaders have no ``batch_size`` and the first dimension of a batch
    may be anything. Only where a list has one index, that dimension may show that the item is a
    whole batch, of unknown size.

    The time until a batch is there counts as a wait, that of a loader within another one as a part
    of the outer one's.
    """
    observer = hooks.observer
    if hooks.training is not None:
        apply_batch_size(dataloader, hooks.environment, hooks.training)
    base: Any = dataloader._BaseDataLoaderIter
    os.register_at_fork(after_in_child=observer.forget_waits)
    base._zeusrun = Pass(Feed())  # of an iterator that does not call __init__
    _begin_passes(base, observer)
    _time_begin(dataloader.DataLoader, _watch_batches(base, observer))


def _begin_passes(base: Any, observer: Observer) -> None:
    """Observe the passes of an iterator, and the indices that it asks for."""
    begin, reset, next_index = base.__init__, base._reset, base._next_index

    def __init__(iterator: Any, loader: Any, *args: Any, **options: Any) -> None:
        # If it has one already, it goes on with other workers.
        part = vars(iterator).get("_zeusrun") or observer.begin_pass(loader)
        part.form(forms=loader._auto_collation)
        iterator._zeusrun = part
        begin(iterator, loader, *args, **options)

    def _reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:  # the workers of a loader go on with another pass
            iterator._zeusrun = observer.begin_pass(loader)
            iterator._zeusrun.form(forms=iterator._auto_collation)
        reset(iterator, loader, first_iter)

    def _next_index(iterator: Any) -> Any:
        index = next_index(iterator)
        iterator._zeusrun.queued.append(index)
        return index

    base.__init__, base._reset, base._next_index = __init__, _reset, _next_index


def _watch_batches(base: Any, observer: Observer) -> Callable[[], bool]:  # noqa: C901 - calls cost
    """Observe each batch: how many samples, and for how long it was waited for.

    Returns whether this thread waits for a batch now: then a loader is within another one.
    """
    next_batch, now = base.__next__, time.perf_counter
    waiting: Pass | None = None  # of several threads that wait, of the first one

    def __next__(iterator: Any) -> Any:
        nonlocal waiting
        part = iterator._zeusrun
        outer = waiting
        if outer is None:
            waiting = part
        since = now()
        try:
            if part.limit is not None:
                part.check_limit()
            batch = next_batch(iterator)
        except StopIteration:
            observer.end_pass(part)
            raise
        finally:
            if outer is None:
                waiting = None
        if outer is None or outer.thread != get_ident():
            part.waited_s += now() - since
        if part is not observer.current:
            observer.begin_feeding(part)
        part.pending += 1
        if part.queued:
            index = part.queued.popleft()
            if part.is_formed:
                size = len(index) if hasattr(index, "__len__") else 0
                if size != part.feed.usual:
                    part.feed.see(size, batch)
                part.samples += size
        return batch

    base.__next__ = __next__
    return lambda: getattr(waiting, "thread", None) == get_ident()


def _time_begin(cls: Any, is_within: Callable[[], bool]) -> None:
    """Let the time until the workers of a loader have started count as a wait, too."""
    iterate = cls.__iter__

    @replaces(cls, "__iter__")
    def __iter__(loader: Any) -> Any:
        since = time.perf_counter()
        iterator = iterate(loader)
        if (part := getattr(iterator, "_zeusrun", None)) is not None and not is_within():
            part.waited_s += time.perf_counter() - since
        return iterator


def scheduler(module: ModuleType, hooks: Hooks) -> None:
    """Record after how many steps a schedule of a fixed length ends, by the first steps of rank 0.

    With another batch size an epoch has another number of steps, but the schedule may not know.
    """
    if hooks.environment.rank == 0:
        from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415 - is imported

        schedulers = _Schedulers(hooks)
        for each in (module.LRScheduler, module.SequentialLR):
            wrap(each, "__init__", lambda built, *_, **__: schedulers.built.add(built))
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
