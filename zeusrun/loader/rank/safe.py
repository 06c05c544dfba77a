"""Which loaders may get another number of workers, and how they get it without another order."""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch

from zeusrun.loader.rank.tuner import Arm

if TYPE_CHECKING:
    from collections.abc import Iterator

_ASKS = {"get_worker_info", "num_workers"}
_ONLY_SEED = {"transformers", "lightning", "lightning_fabric", "pytorch_lightning", "accelerate"}
_PLAIN = (int, float, str, bool, type(None))
_DEPTH = 3
_MAP = 0  # ``_DatasetKind.Map``


def why_left_alone(loader: Any, *, from_zero: bool) -> str | None:
    """Return why a loader keeps its number of workers; ``None`` if it may have another one."""
    if loader._dataset_kind != _MAP:
        return "the data set is iterable, so the number decides which worker reads which samples"
    if loader.num_workers == 0 and not from_zero:
        return (
            "the loader has no workers (num_workers=0). If a copy of the data set can be read in "
            "another process, write  loader: {workers: tune, from_zero: true}"
        )
    if getattr(loader, "in_order", True) is not True:
        return "the loader has in_order=False, so the number decides on the order"
    if loader.worker_init_fn is not None and _asks(loader.worker_init_fn):
        return "its worker_init_fn asks for the number of workers"
    if _asks(getattr(type(loader.dataset), "__getitem__", None)):
        return "its data set asks for its worker, so it may depend on their number"
    return None


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
    if isinstance(thing, torch.Tensor):
        return id(thing), thing._version
    if not depth:
        return id(thing)
    if isinstance(thing, (list, tuple)) and len(thing) <= 2 * _DEPTH:
        return [list_facts(each, depth - 1) for each in thing]
    if hasattr(thing, "__len__") and not hasattr(thing, "__dict__"):
        return id(thing), len(thing)
    values = getattr(thing, "__dict__", {})
    return id(thing), {name: list_facts(each, depth - 1) for name, each in values.items()}


def _say_nothing() -> None:
    """Replace a warning of torch of more workers than cores: the job file allows them."""


class State:
    """What a loader has had from its script, and what it has now.

    Attributes:
        own: As in the script.
        facts: Of its data set at the begin of the present pass.
        is_still: Whether nothing of the data set changed from pass to pass.
        workers: The pids of the workers of the newest pass.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = weakref.ref(loader)
        self.own = Arm(loader.num_workers, stays=bool(loader.persistent_workers))
        self.facts: Any = None
        self.is_still = False
        self.workers: list[int] = []
        self._passes = 0
        self._drawn: Any = None

    def apply(self, arm: Arm, facts: Any) -> None:
        """Give the loader another number of workers; ``facts`` are those of its data set now."""
        loader: Any = self._loader()
        self.is_still, self.facts = self.facts == facts, facts
        kept = Arm(loader.num_workers, stays=bool(loader.persistent_workers))
        # Workers that stay only since zeusrun wants so must see what the script has changed.
        is_old = arm.stays and not self.own.stays and not self.is_still
        if loader._iterator is not None and (kept != arm or is_old):
            loader._iterator._shutdown_workers()
            loader._iterator = None
        loader.num_workers = arm.workers
        vars(loader)["persistent_workers"] = arm.stays and arm.workers > 0
        vars(loader)["check_worker_number_rationality"] = _say_nothing
        loader.prefetch_factor = (loader.prefetch_factor or 2) if arm.workers else None

    @contextlib.contextmanager
    def same_order(self) -> Iterator[None]:
        """Let a pass begin that draws as many random numbers as in the script.

        An iterator that is made anew draws a seed for its workers; one that stays does not.
        """
        loader: Any = self._loader()
        draws, would_draw = loader._iterator is None, not (self.own.stays and self._passes)
        self._passes += 1
        generator = loader.generator or torch.default_generator
        self._drawn = generator, generator.get_state()
        if would_draw and not draws:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        with apart(loader) if draws and not would_draw else contextlib.nullcontext():
            yield

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
