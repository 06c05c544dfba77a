"""What both ways to compare the gradients of ranks share: sums over the ranks. Needs torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed

from zeusrun.worker.stats.numbers import DeferredNumbers, add_up

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from zeusrun.worker.stats.model import Model

    Parts = Sequence[Sequence[float | Tensor]]

STEPS = 8
"""Training steps between two all-reduces.

One in each step takes 1.3 ms of it on gloo and two shared cores; one in every eighth, 0.1 ms.
"""


class RankMeter(ABC):
    """Measures the gradients of one model on several ranks.

    Args:
        group: The ranks.
        model: Receives the norms of a step some steps later, and problems; on every rank alike.
        interval: Measure every so many backward passes that communicate.
        samples: Returns the samples of this rank in the present step; 0 if unknown.
        scale: Returns by what the loss is multiplied.
    """

    follows_copies = True  # also steps of an optimizer that has copies of the parameters

    def __init__(
        self,
        group: Any,
        model: Model,
        *,
        interval: int,
        samples: Callable[[], int],
        scale: Callable[[], float | Tensor],
    ) -> None:
        self.ranks = distributed.get_world_size(group)
        self._rank_sums = RankSums(group, self._receive_sums, interval)
        self._interval, self._samples, self._scale = interval, samples, scale
        self._receive, self._report_problem = model.add, model.report_problem
        self._report_own_problem = model.report_own_problem
        self._count = 0  # backward passes with communication
        self._since_step = 0  # the same since the last optimizer step
        self._failed = False

    def after_step(self) -> None:
        """Begin another optimizer step."""
        self._since_step = 0

    @property
    def behind(self) -> int:
        """Measured steps that are not received yet."""
        return self._rank_sums.behind

    def flush(self) -> None:
        """Receive all that is measured. No collective call."""
        self._rank_sums.flush()

    @abstractmethod
    def _receive_sums(self, numbers: list[float], extra: Any) -> None:
        """Receive the sums of a step: see ``RankSums``."""

    def _fail(self, problem: str) -> None:
        """Report a problem once; this rank still takes part in the all-reduces of the others."""
        if not self._failed:
            self._failed = True
            self._report_own_problem(problem)


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
