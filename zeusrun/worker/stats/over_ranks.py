"""Sums over the ranks, read without making the host or the device wait for them. Needs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from zeusrun.worker.stats.later import Later

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class OverRanks:
    """Passes the sums of each step on, in order.

    Args:
        group: The ranks.
        take: Gets the sums, then those of what is equal on all ranks, then what was given.
    """

    def __init__(self, group: Any, take: Callable[..., None]) -> None:
        self._group = group
        self._later = Later(take)
        self._started: tuple[Any, Tensor, tuple[list[Tensor], ...], Any] | None = None

    def add(self, numbers: Tensor, equal: tuple[list[Tensor], ...] = (), given: Any = None) -> None:
        """Begin to sum over the ranks; every rank must call this at the same place.

        Args:
            numbers: float64, shape ``(n,)``.
            equal: Lists of single numbers in float64, equal on all ranks; they may grow until
                ``collect``.
            given: Is passed on. It keeps those numbers until a device has read them, whatever
                stream they were made on.
        """
        work = distributed.all_reduce(numbers, group=self._group, async_op=True)
        self._started = work, numbers, equal, given

    def collect(self) -> None:
        """Pass earlier steps on, once in every step; on a CPU, all that were added.

        So ranks that compute on CPUs take a step in at the same place. A GPU may be some steps
        behind: there, the wait for NCCL is one of the device's stream, and the copy is polled.
        """
        if self._started is not None:
            (work, numbers, equal, given), self._started = self._started, None
            work.wait()
            sums = [torch.stack(each).sum() if each else numbers.new_zeros(()) for each in equal]
            if sums:
                numbers = torch.cat([numbers, torch.stack(sums)])
            self._later.add(numbers, given)
        self._later.flush(wait=False)

    def flush(self) -> None:
        """Pass everything on. No collective call."""
        self.collect()
        self._later.flush()
