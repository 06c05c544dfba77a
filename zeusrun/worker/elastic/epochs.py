"""Changes the ranks of an unedited script between two epochs.

Where ``DistributedDataParallel``, the loader and its ``DistributedSampler`` are torch's own, the
script stays as it is. A newcomer runs the script from its beginning, but gets only one batch of
each pass until its epoch is the one in which it joins; then all that it has learned is replaced.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zeusrun.worker.elastic.member import Member
    from zeusrun.worker.environment import WorkerEnvironment


class Epochs:
    """Follows the passes over the loaders of a script; called as each begins.

    Args:
        environment: This rank.
        member: Its part in the training.
    """

    def __init__(self, environment: WorkerEnvironment, member: Member) -> None:
        self._environment, self._member = environment, member
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._passes: dict[int, int] = {}
        self._ranks: dict[int, int] = {}  # among which each loader divides its data
        self._batch_sizes: dict[int, int] = {}  # the first ones, over all ranks

    def begin(self, loader: Any, *, is_training: bool) -> bool:
        """Begin a pass; return whether the loader divides its data among other ranks than before.

        ``is_training``: whether the loader is known to feed the optimizer steps.
        """
        sampler: Any = getattr(loader, "sampler", None)
        if not hasattr(sampler, "num_replicas"):
            return False
        number = self._numbers.setdefault(loader, len(self._numbers) + 1)
        passes = self._passes[number] = self._passes.get(number, 0) + 1
        before = self._ranks.setdefault(number, self._environment.world_size)
        epoch = max(passes, int(getattr(sampler, "epoch", 0)) + 1)
        self._member.begin_epoch(number, epoch, is_training=is_training)
        size = self._ranks[number] = self._environment.world_size
        if size == before or sampler.num_replicas != before:
            return False
        self._divide(loader, sampler, number)
        return True

    def _divide(self, loader: Any, sampler: Any, number: int) -> None:
        """Divide data and batches among the present ranks, as ``DistributedSampler`` does."""
        size, batches, total = (
            self._environment.world_size,
            loader.batch_sampler,
            len(sampler.dataset),
        )
        whole = self._batch_sizes.setdefault(number, batches.batch_size * sampler.num_replicas)
        batches.batch_size = max(1, whole // size)
        sampler.num_replicas, sampler.rank = size, self._environment.rank
        kept = total - size if sampler.drop_last and total % size else total
        sampler.num_samples = -(-kept // size)
        sampler.total_size = sampler.num_samples * size
