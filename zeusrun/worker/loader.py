"""A ``DataLoader`` whose batch size may change between steps."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from zeusrun.worker.agent import LoaderControl
from zeusrun.worker.batches import Batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from torch.utils.data import Dataset

    from zeusrun.worker.environment import WorkerEnvironment


class AdaptiveLoader(DataLoader[Any]):
    """Yields each sample once an epoch, divided among the ranks, also if the batch size changes.

    With gradient accumulation, it yields micro-batches: multiply the loss of each by ``weight``,
    call ``backward`` within ``sync(network)``, and let the optimizer step if ``is_step``.

    Args:
        environment: The environment of this rank.
        control: Changes the batch size or the ranks; the default changes neither.
        dataset: A dataset with a length.
        batch_size: The first one, of this rank.
        shuffle: Whether each epoch has another order.
        seed: Of the orders; the same on every rank.
        drop_last: Whether to leave out the samples that do not fill a last batch.
        options: Of a ``DataLoader``, without those that choose the samples of a batch.

    Attributes:
        weight: The share of the present micro-batch in this rank's samples of the step.
        is_step: Whether the optimizer should step after this micro-batch.

    Raises:
        TypeError: If the dataset has no length.
        ValueError: If there are fewer samples than ranks, or an option chooses the samples of a
            batch.
        RuntimeError: If a class of the job file's policy cannot be created.
    """

    def __init__(
        self,
        environment: WorkerEnvironment,
        control: LoaderControl,
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
        plan = environment.plan
        if environment.slot is not None and plan.batch_size is not None:
            self._first = plan.batch_size  # it may not be divisible by the number of ranks
        self._limit: int | None = None  # largest micro-batch of the first steps, in samples
        if (plan.accumulation_steps or 1) > 1:
            self._limit = plan.micro_batch_size or self._first // ranks
        control.prepare(self._first)
        self._environment, self._shuffle, self._seed = environment, shuffle, seed
        self._total, self._drop_last, self._options = total, drop_last, options
        self._is_active = False  # whether a pass goes on
        self._epoch = 0
        self._next_epoch: int | None = None  # as the script has set it
        self.weight, self.is_step = 1.0, True
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
            LoaderControl(),
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
        if not control.is_training(self, epoch):
            yield from self._yield_epoch(LoaderControl())
            return
        try:
            total, drop_last = self._total, self._drop_last
            found = control.begin_epoch(self, epoch, total, drop_last=drop_last)
            self._epoch = found or self._epoch
            yield from self._yield_epoch(control)
        finally:
            control.end_pass(self)

    def _yield_epoch(self, control: LoaderControl) -> Iterator[Any]:
        """Yield the batches of an epoch, which ``control`` may change between two steps."""
        batches = self._batches
        batches.begin(self._shuffle_samples())
        control.enter(self._exchange)
        self._resize()
        while not batches.is_over:
            for batch in super().__iter__():
                micro = batches.planned.popleft()
                self.weight, self.is_step = micro.weight, micro.is_last
                if micro.is_first:
                    control.before_step()
                yield batch
                if control.after_batch(micro, batches):
                    self._resize()
                    break  # the rest of the epoch needs a new iterator
        control.after_epoch()

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
        environment, batches = self._environment, self._batches
        place = environment.rank, environment.world_size
        has_changed = place != (batches.rank, batches.num_replicas)
        batches.rank, batches.num_replicas = place
        size, limit = self._control.sizes(self._first, self._limit)
        batches.global_batch_size, batches.micro_batch_size = size, limit
        if has_changed:
            self._control.change_ranks()  # again: the batches now belong to these ranks

    def _shuffle_samples(self) -> torch.Tensor:
        """Return the order of the samples in this epoch, the same on every rank."""
        if not self._shuffle:
            return torch.arange(self._total)
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        return torch.randperm(self._total, generator=generator)
