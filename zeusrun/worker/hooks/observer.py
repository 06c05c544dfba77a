"""Which data loader feeds the optimizer steps of this rank, and with how many samples a step."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Observed
from zeusrun.worker.context import is_grouped

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.worker.context import RunContext

_ENOUGH = 8  # steps, after which the first observation is recorded
_AGAIN = 1000  # steps, after which a loader that never ends is looked at again
_MAX_SIZES = 2  # a loader has one size of batches, and a smaller last one


class Feed:
    """A data loader, over all its passes.

    Attributes:
        nominal: The batch size of its batch sampler; ``None`` if it has none.
        replicas: Among how many ranks its sampler divides the data; ``None`` if it does not say.
        loader: Returns it; ``None`` once the script has dropped it.
        sizes: The sizes of batches seen.
        batches: How many.
        passes: In which an optimizer stepped.
    """

    def __init__(
        self,
        nominal: int | None = None,
        replicas: int | None = None,
        loader: Callable[[], Any] = lambda: None,
    ) -> None:
        self.nominal, self.replicas, self.loader = nominal, replicas, loader
        self.sizes: set[int | None] = set()
        self.batches = self.passes = 0

    def sees(self, size: int | None) -> None:
        """Take in the size of a batch; ``None`` if the loader does not form batches."""
        self.batches += 1
        if len(self.sizes) <= _MAX_SIZES:
            self.sizes.add(size)

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch; ``None`` if it varies or cannot be observed."""
        sizes = self.sizes
        if not sizes or None in sizes or len(sizes) > _MAX_SIZES:
            return None
        largest = max(size for size in sizes if size is not None)
        # All data fit into one batch.
        if self.nominal is not None and len(sizes) == 1 and self.batches <= max(1, self.passes):
            return max(largest, self.nominal)
        return largest


class Pass:
    """One pass over a loader.

    Attributes:
        feed: The loader.
        pending: Batches since the last optimizer step.
        steps: Optimizer steps so far.
        batches: Of the last step, if it is not the first one.
        ended: Whether all batches have been yielded.
    """

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.pending: int = 0
        self.steps: int = 0
        self.batches: int = 0
        self.ended: bool = False


class Observer:
    """Credits every optimizer step to the loader that yielded last; called in the training loop.

    Attributes:
        current: The pass that yielded last.
        switches: How often another pass than before has yielded since the last step.
        is_separate: Whether a library has said that this process trains by itself.
    """

    def __init__(self, run: RunContext) -> None:
        self.current: Pass | None = None
        self.switches = 0
        self.is_separate = False
        self._run = run
        self._feeds: weakref.WeakKeyDictionary[Any, Feed] = weakref.WeakKeyDictionary()
        self._training: Feed | None = None
        self._earlier = 0  # passes over loaders in whose place the present one came
        self._steps: dict[int, int] = {}  # batches in a step -> steps, since the last record
        self._mixed = 0  # those of them for which several loaders yielded
        self._alone = False  # one of several ranks, with a model of its own
        self._due = _ENOUGH
        self._count = 0
        self._optimizer: Any = None
        self._recorded: tuple[Any, ...] | None = None

    @property
    def epoch(self) -> int | None:
        """Passes over the training data, the present one included; ``None`` if not observed."""
        return None if self._training is None else self._earlier + self._training.passes

    def begin_pass(self, loader: Any) -> Pass:
        """Return a new pass over a loader."""
        try:
            feed = self._feeds.get(loader)
            if feed is None:
                feed = Feed(*_sampler_of(loader), weakref.ref(loader))
                self._feeds[loader] = feed
        except Exception:  # noqa: BLE001 - a loader of the script's own, which has no hash, say
            feed = Feed()
        return Pass(feed)

    def end_pass(self, ended: Pass) -> None:
        """Record what was observed, once a pass in which an optimizer stepped is over."""
        if ended.steps and not ended.ended:
            ended.ended = True
            self.record()

    def step(self, optimizer: Any) -> None:
        """Credit an optimizer step.

        The first step of a pass may have a batch too many, and the last one too few: accelerate's
        loaders read one batch ahead. So they do not count, except a first one of one batch.
        """
        run = self._run
        if not run.grouped and run.world_size > 1:
            run.grouped = is_grouped()  # it may leave the group at the end
        current = self.current
        # A second optimizer of the same batch, or a loader that has read one batch ahead.
        if current is None or not current.pending:
            return
        if not current.steps:
            self._train_on(current.feed)
        pending, current.pending = current.pending, 0
        current.steps += 1
        if current.steps > 1:
            certain, current.batches = current.batches, pending
        else:
            certain = pending if pending == 1 else 0
        if certain:
            self._steps[certain] = self._steps.get(certain, 0) + 1
            self._mixed += self.switches > 1
        self.switches = 0
        self._count += 1
        if self._count >= self._due:
            self._optimizer = optimizer
            self.record()
            self._due = self._count + _AGAIN
        elif self._recorded is None:
            self._optimizer = optimizer  # for a training of few steps

    def _train_on(self, feed: Feed) -> None:
        """Begin a pass in which an optimizer steps."""
        before = self._training
        if before is not feed:
            if before is not None and before.loader() is None:  # the script makes a new one a pass
                self._earlier += before.passes
            elif before is not None:
                self._earlier = 0
            self._steps, self._mixed, self._training = {}, 0, feed
        feed.passes += 1
        self._alone = self._run.world_size > 1 and (self.is_separate or not self._run.grouped)

    def record(self) -> None:
        """Write what was observed to the sidecar, if it is new."""
        feed = self._training
        if feed is None or not self._steps:
            return
        steps = sum(self._steps.values())
        if self._recorded is not None and steps < _ENOUGH:
            return
        batches = max(self._steps, key=self._steps.__getitem__)
        # Of several loaders at once, as for labelled and unlabelled data, none is the one.
        size = None if 2 * self._mixed > steps else feed.batch_size
        self._steps, self._mixed = {}, 0
        samples = None if size is None else size * batches
        rates, self._optimizer = _base_rates(self._optimizer), None
        seen = (samples, batches, feed.replicas, rates, self._alone)
        if self._recorded is not None:
            if not rates:
                seen = (*seen[:3], self._recorded[3], self._alone)
            if seen == self._recorded:
                return
        self._recorded = seen
        self._run.record(Observed(time.monotonic(), self._run.rank, *seen))


def _sampler_of(loader: Any) -> tuple[int | None, int | None]:
    """Return the batch size that a loader's batch sampler names, and its number of replicas."""
    batches = getattr(loader, "batch_sampler", None)
    nominal = getattr(batches, "batch_size", None)
    for sampler in (batches, getattr(batches, "sampler", None), getattr(loader, "sampler", None)):
        for name in ("num_replicas", "num_processes"):  # torch's; that of accelerate's shards
            replicas = getattr(sampler, name, None)
            if type(replicas) is int and replicas > 0:
                return nominal if type(nominal) is int else None, replicas
    return nominal if type(nominal) is int else None, None


def _base_rates(optimizer: Any) -> tuple[float, ...]:
    """Return the distinct learning rates of an optimizer, without what a scheduler does to them."""
    try:
        groups = getattr(optimizer, "param_groups", None) or ()
        rates = [group.get("initial_lr", group.get("lr")) for group in groups]
        return tuple(sorted({float(rate) for rate in rates if isinstance(rate, (int, float))}))[:4]
    except Exception:  # noqa: BLE001 - groups of the script's own
        return ()
