"""Observes the batches of torch's DataLoaders: how many samples, and when a pass begins and ends.

The iterators' base class is private, the same in torch 2.4 to 2.13. Batch sizes come from the
batch sampler's lists of indices, because transformers' loaders have no ``batch_size`` and the
first dimension of a batch may be anything. Only where a list has one index, that dimension may show
that the item is a whole batch, of unknown size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.apply import apply_batch_size
from zeusrun.worker.hooks.observer import Feed, Pass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks


def install(dataloader: ModuleType, hooks: Hooks) -> None:
    """Replace four methods of the iterators' base class, all of them or none."""
    observer = hooks.observer
    if hooks.environment.batch_size_to_replace is not None:
        apply_batch_size(dataloader, hooks.environment, observer)
    base: Any = dataloader._BaseDataLoaderIter
    begin, reset = base.__init__, base._reset
    next_index, next_batch = base._next_index, base.__next__

    def __init__(iterator: Any, loader: Any, *args: Any, **options: Any) -> None:
        iterator._zeusrun = observer.begin_pass(loader)
        begin(iterator, loader, *args, **options)

    def _reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:  # the workers of a loader go on with another pass
            iterator._zeusrun = observer.begin_pass(loader)
        reset(iterator, loader, first_iter)

    def _next_index(iterator: Any) -> Any:
        index = next_index(iterator)
        # Without a batch sampler, the index is one sample's and may be of any type.
        sized = iterator._auto_collation and hasattr(index, "__len__")
        size = len(index) if sized else None
        iterator._zeusrun.feed.sees(size)
        iterator._zeusrun.queued.append(size)
        return index

    def __next__(iterator: Any) -> Any:
        try:
            batch = next_batch(iterator)
        except StopIteration:
            observer.end_pass(iterator._zeusrun)
            raise
        part = iterator._zeusrun
        if part is not observer.current:
            observer.previous, observer.current = observer.current, part
            observer.switches += 1
        part.pending += 1
        size, sizes = part.queued.popleft() if part.queued else None, part.feed.sizes
        part.samples += size or 0
        if size == 1 and None not in sizes and holds_batch(batch):
            sizes.add(None)
        return batch

    base._zeusrun = Pass(Feed())  # of an iterator that does not call __init__

    base.__init__, base._reset = __init__, _reset
    base._next_index, base.__next__ = _next_index, __next__


def holds_batch(item: Any) -> bool:
    """Whether tensors that one index yields share a leading size of more than 1.

    Others may have another one, as DLRM's offsets do; but none has 1, as a batch of one sample has.
    """
    try:
        sizes = [*_leading_sizes(item)]
    except Exception:  # noqa: BLE001 - of a type of the script's own
        return False
    return 1 not in sizes and len({*sizes}) < max(2, len(sizes)) and bool(sizes)


def _leading_sizes(item: Any, depth: int = 3) -> Iterator[int]:
    if shape := getattr(item, "shape", ()):
        yield int(shape[0])
    elif depth and isinstance(item, (list, tuple, dict)):
        for part in item.values() if isinstance(item, dict) else item:
            yield from _leading_sizes(part, depth - 1)
