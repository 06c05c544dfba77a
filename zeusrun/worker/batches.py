"""How the samples of an epoch are divided among the ranks, and cut into micro-batches."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils.data import Sampler

if TYPE_CHECKING:
    from collections.abc import Iterator


class MicroBatch(NamedTuple):
    """A micro-batch of this rank.

    Attributes:
        end: Samples of the epoch up to the end of the step of this micro-batch, over all ranks.
        step_samples: Samples in the step, over all ranks.
        weight: The share of this micro-batch in this rank's samples of the step, from 0 to 1.
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
        position: Samples in the finished steps of the epoch, over all ranks.
        global_batch_size: Samples per step after this position, over all ranks.
        micro_batch_size: The largest number of samples in a micro-batch; ``None``: any.
        rank: The number of this rank, from 0.
        num_replicas: The number of ranks; ``DistributedSampler`` has the same name for it.
        planned: The micro-batches that were sampled, but that the loader has not yielded yet.
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
        """Samples of this rank in a whole step. The observer reads it in place of the batches."""
        return share(min(self.global_batch_size, self._total), self.num_replicas, self.rank)

    @property
    def is_resumed(self) -> bool:
        """Whether a step of this epoch is finished, so that a new iterator continues the epoch."""
        return self.position > 0

    @property
    def rest(self) -> int:
        """Remaining samples of the epoch, over all ranks."""
        return 0 if self.is_over else self._total - self.position

    @property
    def is_over(self) -> bool:
        """Whether the epoch has no step left."""
        return not self._next_step(self.position)

    def begin(self, order: torch.Tensor) -> None:
        """Begin an epoch with an order of the samples."""
        self._order, self.position = order, 0

    def _next_step(self, position: int) -> int:
        """Return the samples of the step at a position, over all ranks; 0 after the last step."""
        rest = self._total - position
        if self._drop_last:
            return self.global_batch_size if rest >= self.global_batch_size else 0
        return next_chunk(rest, self.global_batch_size, self.num_replicas)

    def __iter__(self) -> Iterator[list[int]]:
        self.planned.clear()
        position = self.position
        while samples := self._next_step(position):
            chunk = self._order[position : position + samples]
            if samples < self.num_replicas:  # ranks have joined; no rank may get an empty batch
                chunk = chunk.repeat(math.ceil(self.num_replicas / samples))[: self.num_replicas]
            share = chunk[self.rank :: self.num_replicas].tolist()
            sizes = self._cut(samples)
            position += samples
            for number, size in enumerate(sizes, 1):
                start = sum(sizes[: number - 1])
                is_first, is_last = number == 1, number == len(sizes)
                weight = size / len(share)
                self.planned.append(MicroBatch(position, samples, weight, is_first, is_last))
                yield share[start : start + size]

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


def next_chunk(rest: int, global_batch_size: int, ranks: int) -> int:
    """Return the samples of the next step over all ranks; ``rest`` samples of the epoch remain.

    If the last step would have fewer samples than ranks, the last two steps share their samples
    evenly, or become one step if the batch size is one sample a rank.
    """
    if rest <= global_batch_size or rest >= global_batch_size + ranks:
        return min(rest, global_batch_size)
    return rest if global_batch_size < 2 * ranks else rest // 2


def share(samples: int, ranks: int, rank: int) -> int:
    """Return the samples of a rank in a step; the first ranks may have one sample more."""
    return (samples - rank + ranks - 1) // ranks


def cut(samples: int, ranks: int, rank: int, per_device_max: int | None) -> list[int]:
    """Return the sizes of a rank's micro-batches in a step; they differ by one at most.

    The function makes as few micro-batches as fit. If ``per_device_max`` is 1 and the ranks have
    unequal numbers of samples, a micro-batch may have two samples.
    """
    parts = 1
    if per_device_max is not None:
        parts = min(math.ceil(share(samples, ranks, 0) / per_device_max), samples // ranks)
    each, larger = divmod(share(samples, ranks, rank), parts)
    return [each + 1] * larger + [each] * (parts - larger)
