"""Facts about a data loader, and about a pass over it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MAX_QUEUED = 1000
_MAX_SIZES = 2  # a loader has one batch size, and a smaller last batch


class Taken(NamedTuple):
    """The batches and samples that an optimizer step has taken from a loader."""

    batches: int
    samples: int


NOTHING = Taken(0, 0)


@dataclass
class Feed:
    """A data loader, over all its passes."""

    nominal: int | None = None  # the batch size of its batch sampler; ``None`` if it has none
    replicas: int | None = None  # ranks among which its sampler divides the data; ``None``: unknown
    data: int | None = None  # samples of its dataset; ``None`` if it has no length
    length: int | None = None  # batches in a pass, by ``len``; ``None``: unknown
    loader: Callable[[], Any] = lambda: None  # ``None`` once the script has dropped it
    sizes: set[int | None] = field(default_factory=set)  # of the batches seen
    usual: int = 0  # one of them, of more than one sample
    passes: int = 0  # passes in which an optimizer has stepped
    reads_ahead: bool = False  # whether a step found no new batch, because of prefetching
    trains: bool = False  # whether it feeds optimizer steps
    left: tuple[str, ...] = ()  # where it was built, if its batch size stayed (``hooks/apply.py``)

    def see(self, size: int, batch: Any) -> None:  # noqa: ANN401 - of the script
        """Take in the size of a batch; 0: unknown."""
        sizes = self.sizes
        if (size or None) not in sizes and len(sizes) <= _MAX_SIZES:
            sizes.add(size or None)
        if size > 1:
            self.usual = size
        elif size and None not in sizes and holds_batch(batch):
            sizes.add(None)

    @property
    def is_sized(self) -> bool:
        """Whether all batches, except a smaller last one, have the same known size."""
        return bool(self.sizes) and None not in self.sizes and len(self.sizes) <= _MAX_SIZES


@dataclass
class Pass:
    """One pass over a loader."""

    feed: Feed
    pending: int = 0  # batches since the last optimizer step
    steps: int = 0  # optimizer steps so far
    last: Taken = NOTHING  # taken by the last step, unless it is the first step
    whole: Taken = NOTHING  # taken by the first step, if the pass has no other step
    ended: bool = False  # all batches have been yielded
    # The indices of the batches that are not there yet.
    queued: deque[Any] = field(default_factory=lambda: deque(maxlen=_MAX_QUEUED))
    # Whether the loader forms batches; else an index is one sample's, of any type and size.
    is_formed: bool = False
    limit: int | None = None  # batches that it may still yield; ``None``: no limit
    samples: int = 0  # in the batches since the last step
    backwards: int = 0  # backward passes of synchronized models before this pass began
    waited_s: float = 0.0  # until batches were there, since that was added up; infinite: unknown
    all_waited_s: float = 0.0
    thread: int = field(default_factory=get_ident)  # that reads it

    def check_limit(self) -> None:
        """Raise ``StopIteration`` if no batch is left; call it if there is a limit."""
        if not self.limit:
            raise StopIteration
        self.limit -= 1

    def form(self, *, forms: bool) -> None:
        """Take in whether the loader forms batches; else none of them has a known size."""
        self.is_formed = forms
        if not forms:
            self.feed.sizes.add(None)


def holds_batch(item: Any) -> bool:  # noqa: ANN401 - see above
    """Whether tensors that one index yields share a leading size of more than 1.

    Others may have another one, as DLRM's offsets do; but none has 1, as a batch of one sample has.
    """
    try:
        sizes = [*_leading_sizes(item)]
    except Exception:  # noqa: BLE001 - of a type of the script's own
        return False
    return 1 not in sizes and len({*sizes}) < max(2, len(sizes)) and bool(sizes)


def _leading_sizes(item: Any, depth: int = 3) -> Iterator[int]:  # noqa: ANN401 - see above
    if shape := getattr(item, "shape", ()):
        yield int(shape[0])
    elif depth and isinstance(item, (list, tuple, dict)):
        for part in item.values() if isinstance(item, dict) else item:
            yield from _leading_sizes(part, depth - 1)
