"""A ``DataLoader`` whose batch size may change between steps."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Sampler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from torch.utils.data import Dataset

    from zeusrun.worker.adapt.control import Control
    from zeusrun.worker.elastic.member import Member
    from zeusrun.worker.environment import WorkerEnvironment


class MicroBatch(NamedTuple):
    """A micro-batch of this rank.

    Attributes:
        end: Samples of the epoch up to the end of its step, over all ranks.
        step_samples: Samples of its step, over all ranks.
        weight: Its share of this rank's samples in the step.
        is_first: Whether it is the first of the step.
        is_last: Whether it is the last of the step.
    """

    end: int
    step_samples: int
    weight: float
    is_first: bool
    is_last: bool


class Batches(Sampler[list[int]]):
    """Yields the indices of this rank's micro-batches, from a position in the epoch on.

    Attributes:
        position: Samples of the epoch whose steps are over, over all ranks.
        global_batch_size: Of the steps after this position.
        micro_batch_size: The largest number of samples in a micro-batch; ``None``: any.
        rank: This one.
        num_replicas: The number of ranks, by the name of a ``DistributedSampler``.
        planned: The micro-batches that were sampled, and not yet yielded by the loader.
    """

    def __init__(self, total: int, rank: int, ranks: int, *, drop_last: bool) -> None:
        self.position = self.global_batch_size = 0
        self.micro_batch_size: int | None = None
        self.num_replicas = ranks
        self.planned: deque[MicroBatch] = deque()
        self._total, self.rank, self._drop_last = total, rank, drop_last
        self._order = torch.empty(0)  # of the samples in this epoch

    @property
    def batch_size(self) -> int:
        """Samples of the largest micro-batch."""
        each = self.global_batch_size // self.num_replicas
        return each if self.micro_batch_size is None else min(each, self.micro_batch_size)

    @property
    def step_samples(self) -> int:
        """Samples of this rank in a whole step; observed in place of the batches."""
        return share(min(self.global_batch_size, self._total), self.num_replicas, self.rank)

    @property
    def is_resumed(self) -> bool:
        """Whether steps of this epoch are over, so that a new iterator continues the epoch."""
        return self.position > 0

    @property
    def rest(self) -> int:
        """Samples of the epoch that are left, over all ranks."""
        return 0 if self.is_over else self._total - self.position

    @property
    def is_over(self) -> bool:
        """Whether the epoch has no further step."""
        return not self._next_step(self.position)

    def begin(self, order: torch.Tensor) -> None:
        """Begin an epoch with an order of the samples."""
        self._order, self.position = order, 0

    def _next_step(self, position: int) -> int:
        """Return the samples of the step at a position, over all ranks; 0 if the epoch is over."""
        rest = self._total - position
        if self._drop_last:
            return self.global_batch_size if rest >= self.global_batch_size else 0
        return next_chunk(rest, self.global_batch_size, self.num_replicas)

    def __iter__(self) -> Iterator[list[int]]:
        self.planned.clear()
        position = self.position
        while samples := self._next_step(position):
            chunk = self._order[position : position + samples]
            if samples < self.num_replicas:  # ranks have joined since; none may have an empty batch
                chunk = chunk.repeat(math.ceil(self.num_replicas / samples))[: self.num_replicas]
            own = chunk[self.rank :: self.num_replicas].tolist()
            sizes = self._cut(samples)
            position += samples
            for number, size in enumerate(sizes, 1):
                start = sum(sizes[: number - 1])
                is_first, is_last = number == 1, number == len(sizes)
                weight = size / len(own)
                self.planned.append(MicroBatch(position, samples, weight, is_first, is_last))
                yield own[start : start + size]

    def __len__(self) -> int:
        """Return the number of micro-batches of an epoch at the present batch size."""
        position = max(0, self._total // self.global_batch_size - 1) * self.global_batch_size
        count = position // self.global_batch_size * len(self._cut(self.global_batch_size))
        while samples := self._next_step(position):  # the last ones
            count += len(self._cut(samples))
            position += samples
        return count

    def _cut(self, samples: int) -> list[int]:
        samples = max(samples, self.num_replicas)
        return cut(samples, self.num_replicas, self.rank, self.micro_batch_size)


class AdaptiveLoader(DataLoader[Any]):
    """Yields each sample once an epoch, divided among the ranks, also if the batch size changes.

    With gradient accumulation, it yields micro-batches: multiply the loss of each by ``weight``,
    call ``backward`` within ``sync(network)``, and let the optimizer step if ``is_step``.

    Args:
        environment: This rank.
        control: Changes the batch size; ``None``: it is fixed.
        dataset: One with a length.
        batch_size: The first one, of this rank.
        shuffle: Whether each epoch has another order.
        seed: Of the orders; the same on every rank.
        drop_last: Whether to leave out the samples that do not fill a last batch.
        options: Of a ``DataLoader``, without those that choose the samples of a batch.

    Attributes:
        weight: The share of the present micro-batch in this rank's samples of the step.
        is_step: Whether the optimizer should step after this micro-batch.
        elastic: This process, if the ranks may change; else ``None``.

    Raises:
        TypeError: If the dataset has no length.
        ValueError: If there are fewer samples than ranks, or an option chooses the samples of a
            batch.
        RuntimeError: If a class of the job file's policy cannot be created.
    """

    def __init__(
        self,
        environment: WorkerEnvironment,
        control: Control | None,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        if not hasattr(dataset, "__len__"):
            raise TypeError("zeusrun: run.loader needs a dataset with a length")
        if options.get("in_order") is False:
            raise ValueError(
                "zeusrun: run.loader cannot have in_order=False: it counts its batches"
            )
        if options.keys() & {"sampler", "batch_sampler"}:
            raise ValueError("zeusrun: run.loader divides the samples itself, without a sampler")
        if batch_size < 1:
            raise ValueError(
                f"zeusrun: run.loader needs a batch size of 1 or more, not {batch_size}"
            )
        total, ranks = len(dataset), environment.world_size
        if total < ranks:
            raise ValueError(f"zeusrun: run.loader has {total} samples, fewer than {ranks} ranks")
        self._control = control
        self._first = batch_size * ranks
        if environment.slot is not None and environment.batch_size is not None:
            self._first = environment.batch_size  # it need not divide evenly
        if control is not None:
            control.prepare(self._first)
        self._environment, self._shuffle, self._seed = environment, shuffle, seed
        self._total, self._drop_last, self._options = total, drop_last, options
        self._is_active = False  # whether a pass goes on
        self._epoch = 0
        self._next_epoch: int | None = None  # as the script has set it
        self.weight, self.is_step = 1.0, True
        self.elastic: Member | None = None
        self._batches = Batches(total, environment.rank, ranks, drop_last=drop_last)
        self._resize()
        super().__init__(dataset, batch_sampler=self._batches, **options)

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch, from 1; only for a loop that does not use ``run.epochs``."""
        self._next_epoch = epoch

    def sync(self, network: Any) -> AbstractContextManager[None]:
        """Return a context in which ``backward`` averages gradients in a step's last micro-batch.

        ``network`` is a ``DistributedDataParallel``, or any other module.
        """
        no_sync = getattr(network, "no_sync", None)
        return contextlib.nullcontext() if self.is_step or no_sync is None else no_sync()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield the batches of an epoch; between two steps, the batch size may change."""
        if self._is_active:  # a pass within a pass, such as an evaluation
            yield from self._build_copy()
            return
        self._is_active = True
        try:
            yield from self._yield_pass()
        finally:
            self._is_active = False

    def _build_copy(self) -> AdaptiveLoader:
        """Return a loader of the same data whose batch size is fixed."""
        size = self._first // self._environment.world_size
        copy = AdaptiveLoader(
            self._environment,
            None,
            self.dataset,
            size,
            shuffle=self._shuffle,
            seed=self._seed,
            drop_last=self._drop_last,
            **self._options,
        )
        copy._epoch = self._epoch - 1
        return copy

    def _yield_pass(self) -> Iterator[Any]:
        epoch = self._environment.epoch if self._next_epoch is None else self._next_epoch
        self._epoch, self._next_epoch = epoch or self._epoch + 1, None
        control = self._control
        if control is None or not torch.is_grad_enabled() or not control.is_training(self, epoch):
            yield from self._yield_epoch(None)
            return
        try:
            self._epoch = control.begin_epoch(self, epoch, self._total, drop_last=self._drop_last)
            yield from self._yield_epoch(control)
        finally:
            control.end_pass(self)

    def _yield_epoch(self, control: Control | None) -> Iterator[Any]:
        """Yield the batches of an epoch; without ``control``, the batch size stays the same."""
        batches, elastic = self._batches, self.elastic
        batches.begin(self._shuffle_samples())
        if elastic is not None:
            elastic.parts["loader"] = self._exchange
            elastic.enter()
        self._resize()
        while not batches.is_over:
            for batch in super().__iter__():
                micro = batches.planned.popleft()
                self.weight, self.is_step = micro.weight, micro.is_last
                if control is not None and micro.is_first:
                    control.call_policy("before_step")
                yield batch
                if self._has_changed(micro, control):
                    self._resize()
                    break  # the rest of the epoch needs a new iterator
        if control is not None:
            control.call_policy("after_epoch")

    def _has_changed(self, micro: MicroBatch, control: Control | None) -> bool:
        """Take in that a micro-batch was used; return whether batch size or ranks have changed."""
        elastic, batches = self.elastic, self._batches
        if elastic is not None and elastic.is_lost:
            if elastic.is_made:
                batches.position = micro.end
            elastic.recover()  # else the step is made again
            return True
        if not micro.is_last:
            return False
        batches.position = micro.end
        if elastic is not None and elastic.after_step(batches.rest):
            return True
        return control is not None and control.after_step(micro.step_samples, last=batches.is_over)

    def _exchange(self, part: tuple[int, int, int] | None) -> tuple[int, int, int]:
        """Return batch size, epoch and the position in it; with ``part``, continue there."""
        batches = self._batches
        if part is not None:
            self._first, self._epoch, position = part
            self._environment.epoch = self._epoch
            batches.begin(self._shuffle_samples())
            batches.position = position
        return self._first, self._epoch, batches.position

    def _resize(self) -> None:
        """Apply the present batch size, and the present ranks, to the batches that follow."""
        control, environment = self._control, self._environment
        batches, place = self._batches, (environment.rank, environment.world_size)
        has_changed = place != (batches.rank, batches.num_replicas)
        batches.rank, batches.num_replicas = place
        size = control.batch_size if control is not None else self._first
        limit = None if control is None else control.plan.limits.per_device_max
        if self.elastic is not None:
            scale = self.elastic.scale
            size, limit = scale.apply(size), scale.per_device_max
        elif (environment.accumulation_steps or 1) > 1 and size == self._first:
            limit = environment.micro_batch_size or size // environment.world_size
        batches.global_batch_size, batches.micro_batch_size = size, limit
        if has_changed and self.elastic is not None:
            self.elastic.on_change()  # again: now, the batches are those of these ranks

    def _shuffle_samples(self) -> torch.Tensor:
        """Return the order of the samples in this epoch, the same on every rank."""
        if not self._shuffle:
            return torch.arange(self._total)
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        return torch.randperm(self._total, generator=generator)


def next_chunk(rest: int, global_batch_size: int, ranks: int) -> int:
    """Return the samples of the next step, over all ranks, with ``rest`` left in the epoch.

    If the last step would have fewer samples than ranks, the last two steps share their samples
    evenly, or become one step if the batch size is one sample a rank.
    """
    if rest <= global_batch_size or rest >= global_batch_size + ranks:
        return min(rest, global_batch_size)
    return rest if global_batch_size < 2 * ranks else rest // 2


def share(samples: int, ranks: int, rank: int) -> int:
    """Return the samples of a rank in a step; if they are uneven, the first ranks have one more."""
    return (samples - rank + ranks - 1) // ranks


def cut(samples: int, ranks: int, rank: int, per_device_max: int | None) -> list[int]:
    """Return the sizes of a rank's micro-batches in a step; they differ by one at most.

    Their number is the smallest that fits. A micro-batch may have one sample more than
    ``per_device_max`` if that is 1 and the ranks' shares are uneven.
    """
    parts = 1
    if per_device_max is not None:
        parts = min(math.ceil(share(samples, ranks, 0) / per_device_max), samples // ranks)
    each, larger = divmod(share(samples, ranks, rank), parts)
    return [each + 1] * larger + [each] * (parts - larger)
