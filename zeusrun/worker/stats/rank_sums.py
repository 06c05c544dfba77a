"""Sums over the ranks, read without making the host or the device wait for them. Needs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed

from zeusrun.worker.stats.deferred import DeferredNumbers
from zeusrun.worker.stats.norms import add_up

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    Parts = Sequence[Sequence[float | Tensor]]

STEPS = 8
"""Training steps between two all-reduces.

One in each step takes 1.3 ms of it on gloo and two shared cores; one in every eighth, 0.1 ms.
"""


class _Step(NamedTuple):
    numbers: Tensor
    equal: Parts
    extra: Any


class RankSums:
    """Passes on the sums of each measured step, in order; the all-reduce is for several of them.

    Args:
        group: The ranks.
        receive: Called with the sums, then the sums of ``equal``, then ``extra``: see ``add``.
        interval: Training steps between two measured ones.
    """

    def __init__(self, group: Any, receive: Callable[..., None], interval: int) -> None:
        self._group = group
        self.behind = 0  # measured steps that are not passed on yet
        self._receive = receive
        self._deferred = DeferredNumbers(self._pass_on)
        self._size = max(1, STEPS // interval)
        self._steps: list[_Step] = []
        self._started: tuple[Any, Tensor, list[_Step]] | None = None

    def add(self, numbers: Tensor, equal: Parts = (), extra: Any = None) -> None:
        """Add a measured step; every rank must call this at the same place.

        Args:
            numbers: float64, shape ``(n,)``.
            equal: Lists of single numbers, equal on all ranks; each list is summed. They may grow
                until ``collect``.
            extra: Is passed on. It must keep a reference to the numbers of ``equal`` until a device
                has read them, because they may be computed on another stream.
        """
        self.behind += 1
        self._steps.append(_Step(numbers, equal, extra))
        if len(self._steps) >= self._size:
            sums = torch.stack([step.numbers for step in self._steps])
            work = distributed.all_reduce(sums, group=self._group, async_op=True)
            self._started, self._steps = (work, sums, self._steps), []

    def collect(self) -> None:
        """Pass on earlier steps, once in every step; on a CPU, all that were all-reduced.

        So ranks that compute on CPUs receive a step at the same place. A GPU may be some steps
        behind: there, ``work.wait`` blocks only the device's stream, and the copy is polled.
        """
        if self._started is not None:
            (work, sums, steps), self._started = self._started, None
            work.wait()
            for numbers, step in zip(sums.unbind(), steps, strict=True):
                equal = [add_up(step.equal, numbers)] if step.equal else []
                self._deferred.add(torch.cat([numbers, *equal]), step.extra)
        self._deferred.flush(wait=False)

    def _pass_on(self, numbers: list[float], extra: Any) -> None:
        self.behind -= 1
        self._receive(numbers, extra)

    def flush(self) -> None:
        """Pass on all that is all-reduced. No collective call, so the last steps may be lost."""
        self.collect()
        self._deferred.flush()
