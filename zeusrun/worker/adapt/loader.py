"""A ``DataLoader`` whose batch size may change between steps."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Sampler

from zeusrun.worker.adapt.sharing import cut, next_chunk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from torch.utils.data import Dataset

    from zeusrun.worker.adapt.control import Control
    from zeusrun.worker.adapt.plan import Run


class Part(NamedTuple):
    """A micro-batch of this rank.

    Attributes:
        end: Samples of the epoch, over all ranks, up to the end of its step.
        samples: Of its step, over all ranks.
        weight: Its share of this rank's samples in the step.
        is_first: Whether the step begins with it.
        is_last: Whether the step ends with it.
    """

    end: int
    samples: int
    weight: float
    is_first: bool
    is_last: bool


class Batches(Sampler[list[int]]):
    """The micro-batches of this rank from a position in the epoch on; their indices.

    Attributes:
        position: Samples of the epoch, over all ranks, whose steps are over.
        global_batch_size: Of the steps from there on.
        planned: The micro-batches handed out and not yet yielded by the loader.
        batch_size: Samples of the largest micro-batch.
        num_replicas: Among how many ranks the samples are divided.
    """

    def __init__(self, total: int, rank: int, ranks: int, *, drop_last: bool) -> None:
        self.position = self.global_batch_size = 0
        self.micro_batch_size: int | None = None
        self.num_replicas = ranks
        self.planned: deque[Part] = deque()
        self._total, self._rank, self._drop_last = total, rank, drop_last
        self._order = torch.empty(0)

    @property
    def batch_size(self) -> int:
        """Samples of the largest micro-batch."""
        each = self.global_batch_size // self.num_replicas
        return each if self.micro_batch_size is None else min(each, self.micro_batch_size)

    @property
    def is_resumed(self) -> bool:
        """Whether steps of this epoch are over, so that another pass of the loader goes on."""
        return self.position > 0

    @property
    def is_over(self) -> bool:
        """Whether the epoch has no further step."""
        return not self._chunk(self.position)

    def begin(self, order: torch.Tensor) -> None:
        """Begin an epoch in an order of the samples."""
        self._order, self.position = order, 0

    def _chunk(self, position: int) -> int:
        rest = self._total - position
        if self._drop_last:
            return self.global_batch_size if rest >= self.global_batch_size else 0
        return next_chunk(rest, self.global_batch_size, self.num_replicas)

    def __iter__(self) -> Iterator[list[int]]:
        self.planned.clear()
        position = self.position
        while samples := self._chunk(position):
            chunk = self._order[position : position + samples]
            own = chunk[self._rank :: self.num_replicas].tolist()
            sizes = cut(samples, self.num_replicas, self._rank, self.micro_batch_size)
            position += samples
            for number, size in enumerate(sizes, 1):
                done = sum(sizes[: number - 1])
                part = Part(position, samples, size / len(own), number == 1, number == len(sizes))
                self.planned.append(part)
                yield own[done : done + size]

    def __len__(self) -> int:
        """Return the micro-batches of an epoch at the present batch size."""
        position = max(0, self._total // self.global_batch_size - 1) * self.global_batch_size
        count = position // self.global_batch_size * self._micro_batches(self.global_batch_size)
        while samples := self._chunk(position):  # the last ones
            count += self._micro_batches(samples)
            position += samples
        return count

    def _micro_batches(self, samples: int) -> int:
        return len(cut(samples, self.num_replicas, self._rank, self.micro_batch_size))


class AdaptiveLoader(DataLoader[Any]):
    """Yields each sample once an epoch, divided among the ranks, whatever the batch size becomes.

    With gradient accumulation, it yields micro-batches: multiply the loss of each by ``weight``,
    call ``backward`` within ``sync(network)``, and let the optimizer step if ``is_step``.

    Args:
        run: This rank's run.
        control: What changes the batch size; ``None``: it is fixed.
        dataset: One with a length.
        batch_size: Of this rank, to begin with.
        shuffle: Whether each epoch has another order.
        seed: Of the orders; the same on every rank.
        drop_last: Whether to leave out the samples that do not fill a last batch.
        options: Those of a ``DataLoader`` that are not about which samples make a batch.

    Attributes:
        weight: The share of the micro-batch yielded last in this rank's samples of the step.
        is_step: Whether the optimizer should step after it.

    Raises:
        TypeError: If the dataset has no length.
        ValueError: If the data are fewer than the ranks, or an option says which samples make a
            batch.
        RuntimeError: If a class of the job file's policy cannot be made.
    """

    def __init__(
        self,
        run: Run,
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
        total = len(dataset)
        if total < run.world_size:
            raise ValueError(
                f"zeusrun: run.loader has {total} samples, fewer than {run.world_size} ranks"
            )
        self._control = control
        self._first = batch_size * run.world_size
        if control is not None:
            control.prepare(self._first)
        self._run, self._shuffle, self._seed, self._total = run, shuffle, seed, total
        self._drop_last = drop_last
        self._epoch = 0
        self._told: int | None = None
        self.weight, self.is_step = 1.0, True
        self._batches = Batches(total, run.rank, run.world_size, drop_last=drop_last)
        self._resize()
        super().__init__(dataset, batch_sampler=self._batches, **options)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch follows, from 1; only for a loop that does not use ``run.epochs``."""
        self._told = epoch

    def sync(self, network: Any) -> AbstractContextManager[None]:
        """Return a context in which ``backward`` averages gradients only if the step ends with it.

        ``network`` is a ``DistributedDataParallel``, or any other module.
        """
        wait = getattr(network, "no_sync", None)
        return contextlib.nullcontext() if self.is_step or wait is None else wait()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield the batches of an epoch; between two steps, the batch size may change."""
        told = self._run.epoch if self._told is None else self._told
        self._epoch, self._told = told or self._epoch + 1, None
        control = self._control if torch.is_grad_enabled() else None  # else it is an evaluation
        if control is not None and not control.leads(self, told):
            control = None
        try:
            if control is not None:
                self._epoch = control.begin_epoch(
                    self, told, self._total, drop_last=self._drop_last
                )
            yield from self._pass(control)
        finally:
            if control is not None:
                control.leave(self)

    def _pass(self, control: Control | None) -> Iterator[Any]:
        """Yield the batches of an epoch; without ``control``, the batch size stays."""
        batches = self._batches
        self._resize()
        batches.begin(self._order())
        while not batches.is_over:
            for batch in super().__iter__():
                part = batches.planned.popleft()
                self.weight, self.is_step = part.weight, part.is_last
                if control is not None and part.is_first:
                    control.before_step()
                yield batch
                if part.is_last:
                    batches.position = part.end
                    if control is not None and control.after_step(
                        part.samples, last=batches.is_over
                    ):
                        self._resize()
                        break
        if control is not None:
            control.end_epoch()

    def _resize(self) -> None:
        """Take the present batch size over."""
        control, run = self._control, self._run
        size = control.batch_size if control is not None else self._first
        self._batches.global_batch_size = size
        if run.accumulation_steps() > 1 and size == self._first:
            self._batches.micro_batch_size = run.micro_batch_size(size // run.world_size)
        else:
            limits = None if control is None else control.plan.limits
            self._batches.micro_batch_size = None if limits is None else limits.per_device_max

    def _order(self) -> torch.Tensor:
        """Return the order of the samples in this epoch, the same on every rank."""
        if not self._shuffle:
            return torch.arange(self._total)
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        return torch.randperm(self._total, generator=generator)
