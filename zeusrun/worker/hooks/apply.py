"""Replaces the batch size or learning rate of the script by the chosen one.

``batch_size.apply: dataloader`` and ``learning_rate.apply: optimizer`` in the job file turn it on,
for scripts that have no argument for them.
"""

from __future__ import annotations

import gc
import math
import sys
import time
import weakref
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Applied
from zeusrun.worker.agent import RankAgent
from zeusrun.worker.hooks.imports import replaces

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType

    from zeusrun.worker.environment import WorkerEnvironment
    from zeusrun.worker.hooks.observer import Observer
    from zeusrun.worker.passes import Feed

_LIBRARIES = {
    "torch",
    "zeusrun",
    "accelerate",
    "lightning",
    "lightning_fabric",
    "pytorch_lightning",
}

_EVALUATE = {"val_dataloader", "test_dataloader", "predict_dataloader"}  # Lightning's names


@dataclass(frozen=True)
class _Built:
    """A data loader about to be built."""

    data: int  # id of its dataset
    sampler: Any
    draws: bool  # its samples in random order, as most training loaders do
    lines: tuple[str, ...]  # of the script, innermost first
    by_library: bool
    to_evaluate: bool  # says the name of a function


class TrainingLoader(RankAgent):
    """Tells which data loaders get the chosen batch size: those that feed the optimizer steps.

    That is known only at the first step, when a batch size is fixed. So it is the first loader with
    batches of the size that the script gives, outside Lightning's functions for evaluation. A later
    one is left as it is, unless

    - the one before it is gone and has fed no step, so that it was not for training;
    - it draws in random order, the one before it does not, and no step was made: that one gets its
      own batch size again;
    - it is the same one again, as Lightning rebuilds it or a function of the script: over the same
      dataset, and not another part of it;
    - it was built in the same way after steps, as in the next fold or epoch.
    """

    def __init__(self, environment: WorkerEnvironment, observer: Observer) -> None:
        self._environment, self._observer = environment, observer
        self._last: _Built | None = None  # which got the chosen batch size
        self._loader: Callable[[], Any] = lambda: None  # that one
        self._batches: Callable[[], Any] = lambda: None  # its sampler, while it or a pass is used
        self._given_up = self._is_settled = False
        self._undo: list[Callable[[], None]] = []  # functions that restore the learning rate
        self._steps = 0  # before it
        self._left: set[int] = set()  # ids of the datasets of those that were left as they are
        self._recorded: set[tuple[str, ...]] = set()

    @property
    def given(self) -> int:
        """The batch size that the script gives to this rank; that of a fork is another one."""
        return max(self._environment.batch_size_to_replace, default=0)

    @property
    def chosen(self) -> int:
        """The batch size of this rank that zeusrun chose."""
        return self._environment.share or self.given

    def is_it(self, built: _Built) -> bool:
        """Whether a loader gets the chosen batch size."""
        last, stepped = self._last, self._observer.steps > self._steps
        same_data = last is not None and (built.data, built.draws) == (last.data, last.draws)
        left = built.by_library and built.data in self._left and not same_data
        if self._given_up or built.to_evaluate or left:
            return False
        if last is None or (stepped and built.lines == last.lines):
            return True
        if not stepped and (self._batches() is None or (built.draws and not last.draws)):
            return True
        if not (same_data and (built.by_library or built.lines[0] == last.lines[0])):
            return False
        mine, theirs = map(_indices, (getattr(self._batches(), "sampler", None), built.sampler))
        # Both may draw from known parts of the dataset that have no sample in common.
        return not (mine and theirs and mine.isdisjoint(theirs))

    def take(self, built: _Built, loader: Any) -> None:
        """Remember the loader that got the chosen batch size, and record a new place."""
        last, place = self._last, built.lines[:1]
        if last is not None and built.draws > last.draws and self._observer.steps == self._steps:
            self._restore(last)
        is_rebuilt = last is not None and built.by_library and built.data == last.data
        if not is_rebuilt and place not in self._recorded:
            self._recorded.add(place)
            self._record(self.chosen, built.lines[0])
        self._left.discard(built.data)
        self._last, self._steps = built, self._observer.steps
        self._loader, self._batches = weakref.ref(loader), weakref.ref(loader.batch_sampler)

    def leave(self, built: _Built, loader: Any) -> None:
        """Remember a loader that kept its batch size."""
        self._left.add(built.data)
        loader._zeusrun_left = built.lines

    def _restore(self, last: _Built) -> None:
        """Give its own batch size to a loader again, before it has fed a step."""
        loader, batches = self._loader(), self._batches()
        if batches is not None:
            batches.batch_size = self.given
        if loader is not None:
            vars(loader)["batch_size"] = self.given  # torch refuses to set it
            self.leave(last, loader)
        self._recorded.discard(last.lines[:1])
        self._record(self.given, last.lines[0])

    def undo_with_it(self, undo: Callable[[], None]) -> None:
        """Call a function before the first step if the batch size is not applied."""
        self._undo.append(undo)

    def before_step(self) -> None:
        """Before the first step: if the chosen batch size does not feed it, apply nothing.

        A scheduler may want one step of the optimizer before there is a batch.
        """
        last, observer = self._last, self._observer
        current, previous = observer.current, observer.previous
        if self._is_settled or (last is not None and current is None and not observer.steps):
            return
        self._is_settled = True
        if last is not None and current is not None:
            beside = None if previous is None or previous.ended else previous
            arrives = current.feed.nominal in {None, self.chosen}
            if last.draws and beside is not None:  # two feed the step, such as by ``zip``
                arrives = arrives or (beside.pending > 0 and beside.feed.nominal == self.chosen)
                arrives = arrives or bool(beside.feed.left)
            if arrives or (last.draws and current.feed.left):  # ``feed`` raises
                return
        if self.chosen == self.given:
            return
        if last is not None:
            self._restore(last)
        self._last, self._given_up = None, True
        self._record(self.given, "")
        for undo in self._undo:
            undo()

    def feed(self, feed: Feed, *, early: bool) -> None:
        """Say that a loader feeds steps that was left as it is.

        Raises:
            RuntimeError: If it is early, so that nothing is lost.
        """
        left = feed.left
        if self._last is None or not left:
            return
        # Both may have been built by the same function.
        pairs = zip(left, self._last.lines, strict=False)
        trains, changed = next((pair for pair in pairs if pair[0] != pair[1]), left[:1] * 2)
        if early:
            raise RuntimeError(
                f"zeusrun: batch_size.apply: dataloader: the data loader of {trains} feeds the "
                f"optimizer steps, but zeusrun changed that of {changed}: the first one with "
                f"batches of {self.given}. Build the one that trains first, give the other one "
                "another batch size, or pass ${local_batch_size} in args"
            )
        if left not in self._recorded:
            self._recorded.add(left)
            self._record(self.given, trains)

    def _record(self, chosen: int, where: str) -> None:
        applied = Applied(time.monotonic(), "batch_size", self.given, chosen, where)
        self._environment.record_on_0(applied)


def apply_batch_size(
    dataloader: ModuleType, environment: WorkerEnvironment, training: TrainingLoader
) -> None:
    """Give the chosen batch size to the data loader that feeds the optimizer steps.

    If that turns out to be another one with such batches, the script fails in its first steps.

    Args:
        dataloader: ``torch.utils.data.dataloader``.
        environment: This rank.
        training: Knows which loader that is.
    """
    cls: Any = dataloader.DataLoader
    build = cls.__init__

    @replaces(cls, "__init__")
    def init(loader: Any, dataset: Any, batch_size: Any = 1, *args: Any, **options: Any) -> None:
        shuffle, sampler, batches = _options(args, options)
        known = type(batch_size) is int and batch_size in environment.batch_size_to_replace
        if not known or batches is not None:
            build(loader, dataset, batch_size, *args, **options)
            return
        built = _Built(id(dataset), sampler, _draws(shuffle, sampler), *_callers())
        if training.is_it(built):
            build(loader, dataset, training.chosen, *args, **options)
            training.take(built, loader)
        else:
            build(loader, dataset, batch_size, *args, **options)
            training.leave(built, loader)


def apply_learning_rate(
    optimizer: ModuleType,
    environment: WorkerEnvironment,
    given: float,
    training: TrainingLoader | None,
) -> None:
    """Give the chosen learning rate to every optimizer that the script builds with its own.

    Args:
        optimizer: ``torch.optim.optimizer``.
        environment: This rank.
        given: The learning rate that the script gives, ``learning_rate.base``.
        training: Takes it back before the first step if the batch size is not applied.
    """
    cls: Any = optimizer.Optimizer
    build = cls.__init__
    chosen = environment.plan.learning_rate or given
    places: set[str] = set()  # a script may build one in every epoch
    changed: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def record(rate: float, where: str) -> None:
        environment.record_on_0(Applied(time.monotonic(), "learning_rate", given, rate, where))

    def take_back() -> None:
        nonlocal chosen
        _rescale([*changed.values()], chosen, given)
        chosen = given
        for where in sorted(places):
            record(given, where)

    @replaces(cls, "__init__")
    def init(self: Any, params: Any, defaults: dict[str, Any]) -> None:
        groups = params if isinstance(params, list) else []
        found = [
            options
            for options in (defaults, *groups)
            if isinstance(options, dict) and _is_rate(options.get("lr"), given)
        ]
        for options in found:
            options["lr"] = chosen
        if found and (where := _callers()[0][0]) not in places:
            places.add(where)
            record(chosen, where)
        build(self, params, defaults)
        if found:
            changed[id(self)] = self

    if training is not None:
        training.undo_with_it(take_back)


def _rescale(optimizers: list[Any], now: float, rate: float) -> None:
    """Give a rate to the groups of optimizers that were built with another one.

    Schedulers of torch and timm that were built since have copied that one, and may have changed
    the group's.
    """
    for optimizer in optimizers:
        groups = optimizer.param_groups
        chosen = [_is_rate(group.get("initial_lr", group.get("lr")), now) for group in groups]
        for group in compress(groups, chosen):
            group["lr"] = rate if _is_rate(group["lr"], now) else group["lr"] * (rate / now)
        for options in (optimizer.defaults, *compress(groups, chosen)):
            same = [name for name in ("lr", "initial_lr") if _is_rate(options.get(name), now)]
            options.update(dict.fromkeys(same, rate))
        for each in gc.get_referrers(optimizer):  # an object, or its attributes
            known = each if type(each) is dict else getattr(each, "__dict__", None)
            if type(known) is not dict or known.get("optimizer") is not optimizer:
                continue
            for name in {"base_lrs", "base_values"} & known.keys():
                bases = zip(known[name], chosen, strict=False)
                known[name] = [rate if of and _is_rate(base, now) else base for base, of in bases]
            if "_last_lr" in known:
                known["_last_lr"] = [group["lr"] for group in groups]


def _options(args: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
    """Return the arguments ``shuffle``, ``sampler`` and ``batch_sampler`` of a loader."""
    return [
        options.get(name, args[place] if len(args) > place else None)
        for place, name in enumerate(("shuffle", "sampler", "batch_sampler"))
    ]


def _draws(shuffle: Any, sampler: Any) -> bool:
    """Whether a loader draws its samples in random order."""
    if sampler is None:
        return bool(shuffle)
    return bool(getattr(sampler, "shuffle", type(sampler).__name__ != "SequentialSampler"))


def _indices(sampler: Any) -> set[int]:
    """Return the samples that a ``SubsetRandomSampler`` draws; empty for another sampler."""
    try:
        return set(map(int, getattr(sampler, "indices", ())))
    except (TypeError, ValueError):
        return set()


def _is_rate(value: Any, rate: float) -> bool:
    return isinstance(value, (int, float)) and math.isclose(value, rate, rel_tol=1e-9)


def _callers() -> tuple[tuple[str, ...], bool, bool]:
    """Return file and line of the script's frames, innermost first, and the rest of ``_Built``."""
    frame: FrameType | None = sys._getframe(2)
    caller, functions, lines = "", set(), []
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        function = frame.f_code.co_name
        functions.add(function)
        if not caller and package not in {"torch", "zeusrun"} and function != "wrapper":
            caller = package  # Lightning wraps what a script calls
        if package not in _LIBRARIES or frame.f_back is None:
            lines.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(lines), caller in _LIBRARIES, not functions.isdisjoint(_EVALUATE)
