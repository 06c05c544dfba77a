"""Which loaders may get another number of workers, and how they get it without another order."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import sys
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch

from zeusrun.loader.rank.tuner import Arm

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BY_A_THREAD = "a thread of the script reads the loader"
_OF_TORCH = {"torch", "builtins"}
_ASKS = {"get_worker_info", "num_workers"}
_ONLY_SEED = {"transformers", "lightning", "lightning_fabric", "pytorch_lightning", "accelerate"}
_PLAIN = (int, float, str, bool, type(None))
_DEPTH = 3
_MAP = 0  # ``_DatasetKind.Map``
_ALONE = 2  # references to the iterator of a loader: the loader's, and that of the call that counts


def why_left_alone(loader: Any, given: Mapping[str, Any]) -> str | None:
    """Return why a loader keeps its number of workers; ``None`` if it may have another one."""
    if loader._dataset_kind != _MAP:
        return "the data set is iterable, so the number decides which worker reads which samples"
    if loader.num_workers == 0 and not given["from_zero"]:
        return (
            "the loader has no workers (num_workers=0). If a copy of the data set can be read in "
            f"another process, write  loader: {{workers: {given['workers']}, from_zero: true}}"
        )
    if (loader.num_workers == 0 or loader.persistent_workers) and _is_eager(loader._index_sampler):
        return "its sampler may draw random numbers twice if workers start, and once if none does"
    if threading.current_thread() is not threading.main_thread():
        return BY_A_THREAD
    if getattr(loader, "in_order", True) is not True:
        return "the loader has in_order=False, so the number decides on the order"
    own = {name: [getattr(loader, name)] for name in ("worker_init_fn", "collate_fn")}
    called = {**own, "data set": _list_readers(loader.dataset)}
    asking = next((name for name in called if any(map(_asks, called[name]))), None)
    return asking and f"its {asking} asks for its worker, so it may depend on their number"


def _is_eager(sampler: Any) -> bool:
    """Whether a sampler of the script may draw random numbers before its first index is asked."""
    own = str(type(sampler).__module__).partition(".")[0] not in _OF_TORCH
    return own and not inspect.isgeneratorfunction(type(sampler).__iter__)


def _list_readers(data: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Yield the functions that read samples, also those of data sets within a data set."""
    yield from (getattr(type(data), name, None) for name in ("__getitem__", "__getitems__"))
    within = [getattr(data, "dataset", None), *(getattr(data, "datasets", None) or ())]
    for each in within if depth else ():
        yield from _list_readers(each, depth - 1)


def _asks(function: Any) -> bool:
    """Whether a function may ask for the number of workers."""
    while isinstance(function, functools.partial):
        function = function.func
    if str(getattr(function, "__module__", "")).partition(".")[0] in _ONLY_SEED:
        return False  # they take it to make a seed
    if not hasattr(function, "__code__"):  # an object that can be called
        function = getattr(type(function), "__call__", None)  # noqa: B004
    code = getattr(function, "__code__", None)
    return code is not None and bool(_ASKS & {*code.co_names, *code.co_varnames})


def is_shuffled(loader: Any) -> bool:
    """Whether a loader draws its samples in random order, as that of a training does."""
    sampler = getattr(loader, "sampler", None)
    return bool(getattr(sampler, "shuffle", type(sampler).__name__ != "SequentialSampler"))


def list_facts(thing: Any, depth: int = _DEPTH) -> Any:
    """Return what would show that a data set has changed: plain values, and which objects it has.

    Changes within an array or a list of the same length are not seen.
    """
    if isinstance(thing, _PLAIN):
        return thing
    thing = thing.__self__ if isinstance(thing, types.MethodType) else thing
    if isinstance(thing, torch.Tensor):
        return _identify(thing), thing._version
    if not depth:
        return _identify(thing)
    if isinstance(thing, (list, tuple)) and len(thing) <= 2 * _DEPTH:
        return [list_facts(each, depth - 1) for each in thing]
    if hasattr(thing, "__len__") and not hasattr(thing, "__dict__"):
        return _identify(thing), len(thing)
    values = getattr(thing, "__dict__", {})
    return _identify(thing), {name: list_facts(each, depth - 1) for name, each in values.items()}


def _identify(thing: Any) -> tuple[Any, ...]:
    """Return what no other object has: a reference that has died is equal to no other one."""
    try:
        return id(thing), weakref.ref(thing)
    except TypeError:  # for example, a list
        return (id(thing),)


def _say_nothing() -> None:
    """Replace a warning of torch of more workers than cores: the job file allows them."""


class State:
    """What a loader has had from its script, and what it has now.

    Attributes:
        loader: Returns it; ``None`` once the script has dropped it.
        own: As in the script.
        is_still: Whether nothing of the data set changed from pass to pass.
        is_within: Whether the pass that begins is one within another pass.
        workers: The pids of the workers of the newest pass, those within another one left out.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = weakref.ref(loader)
        self.own = Arm(loader.num_workers, stays=bool(loader.persistent_workers))
        self.is_still = self.is_within = False
        self.workers: list[int] = []
        self._facts: Any = None
        self._newest: Any = lambda: None  # weak reference to the iterator of the newest pass
        self._passes = 0
        self._drawn: Any = None

    @property
    def present(self) -> Arm:
        """What the loader has now."""
        loader: Any = self.loader()
        return Arm(loader.num_workers, stays=bool(loader.persistent_workers))

    def is_free(self) -> bool:
        """Whether the newest pass is over: it has ended, or nothing can read on.

        An iterator whose workers stay belongs to the loader. Python counts who else has it.
        """
        loader, newest = self.loader(), self._newest()
        part = getattr(newest, "_zeusrun", None)
        # Lightning reads as many batches as there are, and keeps the iterator.
        if part is None or part.ended or newest._num_yielded >= (part.feed.length or math.inf):
            return True
        del newest  # which counts, too
        if loader is None or loader._iterator is None:
            return False
        return sys.getrefcount(loader._iterator) <= _ALONE

    def apply(self, arm: Arm) -> None:
        """Give the loader another number of workers; no pass over it may be unfinished."""
        loader: Any = self.loader()
        if loader is None:
            return
        parts = (loader.dataset, loader.collate_fn, loader.worker_init_fn)
        facts = [*map(list_facts, parts)]
        self.is_still, self._facts = self._facts == facts, facts
        # Workers that stay only since zeusrun wants so must see what the script has changed.
        is_old = arm.stays and not self.own.stays and not self.is_still
        kept = loader._iterator
        if kept is not None and (self.present != arm or is_old or self._lacks_one(kept)):
            kept._shutdown_workers()
            loader._iterator = None
        self._set(arm)
        vars(loader)["check_worker_number_rationality"] = _say_nothing

    def _lacks_one(self, iterator: Any) -> bool:
        """Whether a worker that zeusrun has started has died between two passes."""
        return self.present != self.own and not all(each.is_alive() for each in iterator._workers)

    def _set(self, arm: Arm) -> None:
        loader: Any = self.loader()
        loader.num_workers = arm.workers
        vars(loader)["persistent_workers"] = arm.stays and arm.workers > 0
        loader.prefetch_factor = (loader.prefetch_factor or 2) if arm.workers else None

    @contextlib.contextmanager
    def same_order(self) -> Iterator[None]:
        """Let a pass begin that draws as many random numbers as in the script.

        An iterator that is made anew draws a seed for its workers; one that stays does not.
        """
        loader: Any = self.loader()
        present = self.present
        if self.is_within and not self.own.stays:  # it gets an iterator beside that of the loader
            self._set(self.own)
        draws = loader._iterator is None or not loader.persistent_workers
        would_draw = not (self.own.stays and self._passes)
        self._passes += 1
        generator = loader.generator or torch.default_generator
        self._drawn = generator, generator.get_state()
        if would_draw and not draws:
            iter(loader._index_sampler)  # once more than workers that stay need
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        try:
            with apart(loader) if draws and not would_draw else contextlib.nullcontext():
                yield
        finally:
            if self.is_within:
                self._set(present)

    def follow(self, iterator: Any) -> None:
        """Take in the iterator of a pass that has begun."""
        if not self.is_within:
            self._newest = weakref.ref(iterator)

    def draw_again(self) -> None:
        """Forget what was drawn since the pass began: it begins once more."""
        generator, state = self._drawn
        generator.set_state(state)


@contextlib.contextmanager
def apart(loader: Any) -> Iterator[None]:
    """Let a loader draw the seed of its workers from a generator of its own."""
    given = loader.generator
    loader.generator = torch.Generator()
    loader.generator.seed()
    try:
        yield
    finally:
        loader.generator = given
