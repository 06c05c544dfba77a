"""Changes the ranks of an unedited script between two epochs.

Where ``DistributedDataParallel``, the loader and its ``DistributedSampler`` are torch's own, the
script stays as it is. A newcomer runs the script from its beginning, but gets only one batch of
each pass until its epoch is the one in which it joins; then all that it has learned is replaced.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zeusrun.elastic.rank.member import Member
    from zeusrun.worker.environment import WorkerEnvironment


_LIBRARIES = ("transformers", "accelerate", "lightning", "pytorch_lightning")


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
        self._places: set[tuple[int, int]] = set()  # rank and number of ranks, so far
        # The batch size of each loader over all ranks, where it is not scaled.
        self._wholes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def begin(self, loader: Any, *, is_training: bool) -> bool:
        """Begin a pass; return whether the loader divides its data among other ranks than before.

        ``is_training``: whether the loader is known to feed the optimizer steps.
        """
        from torch.utils.data import BatchSampler, DistributedSampler  # noqa: PLC0415 - as needed

        from zeusrun.worker.loader import AdaptiveLoader  # noqa: PLC0415 - imports torch

        if isinstance(loader, AdaptiveLoader):
            return False
        sampler, batches = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
        if not isinstance(sampler, DistributedSampler) or not isinstance(batches, BatchSampler):
            if is_training:
                self._member.refuse(
                    "the training data come from no DataLoader with a DistributedSampler of torch"
                )
            return False
        if library := next((each for each in _LIBRARIES if each in sys.modules), None):
            self._member.refuse(f"{library} keeps the ranks that it has found at its start")
        number = self._number(loader)
        passes = self._passes[number] = self._passes.get(number, 0) + 1
        self._places.add(self._place)
        self._member.begin_epoch(number, max(passes, sampler.epoch + 1), is_training=is_training)
        own = sampler.rank, sampler.num_replicas
        if own not in self._places or self._member.is_alone:
            return False
        if loader not in self._wholes:
            self._wholes[loader] = self._find_whole(number, batches.batch_size, own[1])
        each = max(1, self._member.scale.apply(self._wholes[loader]) // self._place[1])
        if (own, batches.batch_size) == (self._place, each):
            return False
        batches.batch_size = each
        self._divide(sampler)
        return True

    @property
    def _place(self) -> tuple[int, int]:
        return self._environment.rank, self._environment.world_size

    def _number(self, loader: Any) -> int:
        """Return the number of a loader; one that a script builds for each epoch keeps it."""
        if loader not in self._numbers:
            taken = set(self._numbers.values())
            self._numbers[loader] = min(set(range(1, len(taken) + 2)) - taken)
        return self._numbers[loader]

    def _find_whole(self, number: int, share: int, ranks: int) -> int:
        """Return the batch size of a loader over all ranks, from its own on one of them.

        With another number of ranks than at the start, a script may have divided its batch size by
        that number, or given each rank the same as before. Anything else is another batch size.
        """
        chosen = self._environment.plan.batch_size
        if chosen and share in {self._environment.share, chosen // ranks}:
            return chosen
        whole, first = self._member.board.read_loader(number)
        if share not in {first, whole // ranks}:
            whole = share * ranks
            if self._environment.rank == 0:
                self._member.board.write_loader(number, whole, share)
        return whole

    def _divide(self, sampler: Any) -> None:
        """Divide the data among the present ranks, as a new sampler would."""
        sampler.rank, sampler.num_replicas = _, size = self._place
        total = len(sampler.dataset)
        kept = total - size if sampler.drop_last and total % size else total
        sampler.num_samples = -(-kept // size)
        sampler.total_size = sampler.num_samples * size
