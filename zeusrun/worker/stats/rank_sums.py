"""Sums over the ranks, read without making the host or the device wait for them. Needs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from zeusrun.worker.stats.deferred import DeferredNumbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class RankSums:
    """Passes on the sums of each step, in order.

    Args:
        group: The ranks.
        receive: Called with the sums, then the sums of ``equal``, then ``extra``: see ``add``.
    """

    def __init__(self, group: Any, receive: Callable[..., None]) -> None:
        self._group = group
        self._deferred = DeferredNumbers(receive)
        self._started: tuple[Any, Tensor, tuple[list[Tensor], ...], Any] | None = None

    def add(self, numbers: Tensor, equal: tuple[list[Tensor], ...] = (), extra: Any = None) -> None:
        """Start to sum over the ranks; every rank must call this at the same place.

        Args:
            numbers: float64, shape ``(n,)``.
            equal: Lists of single numbers in float64, equal on all ranks; each list is summed. They
                may grow until ``collect``.
            extra: Is passed on. It must keep a reference to the numbers of ``equal`` until a device
                has read them, because they may be computed on another stream.
        """
        work = distributed.all_reduce(numbers, group=self._group, async_op=True)
        self._started = work, numbers, equal, extra

    def collect(self) -> None:
        """Pass on earlier steps, once in every step; on a CPU, all that were added.

        So ranks that compute on CPUs receive a step at the same place. A GPU may be some steps
        behind: there, ``work.wait`` blocks only the device's stream, and the copy is polled.
        """
        if self._started is not None:
            (work, numbers, equal, extra), self._started = self._started, None
            work.wait()
            sums = [torch.stack(each).sum() if each else numbers.new_zeros(()) for each in equal]
            if sums:
                numbers = torch.cat([numbers, torch.stack(sums)])
            self._deferred.add(numbers, extra)
        self._deferred.flush(wait=False)

    def flush(self) -> None:
        """Pass on everything. No collective call."""
        self.collect()
        self._deferred.flush()
