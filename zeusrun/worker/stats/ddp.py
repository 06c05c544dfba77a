"""Watches the gradients of a ``DistributedDataParallel`` from inside its communication hook.

The hook sees each bucket of gradients before and after it is averaged over the ranks. So |g|² and
|ḡ|² cost one read of the bucket each, and one all-reduce of three numbers a step, which overlaps
the rest of the step and is read in a later one.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from zeusrun.worker.stats.noise import Norms
from zeusrun.worker.stats.norms import squared_norm

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.futures import Future
    from torch.nn.parallel import DistributedDataParallel

    Reduce = Callable[[distributed.GradBucket], Future[torch.Tensor]]

_AVERAGING: Any = (
    default_hooks.allreduce_hook,
    default_hooks.fp16_compress_hook,
    default_hooks.bf16_compress_hook,
)


class Round:
    """The norms of one backward pass, while they are computed."""

    def __init__(self, scale: float | torch.Tensor) -> None:
        self.scale = scale  # of the loss
        self.each: list[torch.Tensor] = []  # of the buckets of this rank
        self.mean: list[torch.Tensor] = []  # of the averaged ones
        self.sums: Any = None  # over the ranks: |g|², 1 / b, and how many are not usable
        self.work: Any = None


class GradientWatch:
    """Measures the gradients of one model.

    Args:
        ddp: The model, with more than one rank.
        interval: Measure every so many backward passes with communication.
        samples: Returns the samples of this rank in the present step; 0 if unknown.
        scale: Returns by what the loss is multiplied.
        take: Gets the norms of a step, some steps later, the same on every rank.
    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        *,
        interval: int,
        samples: Callable[[], int],
        scale: Callable[[], float | torch.Tensor],
        take: Callable[[Norms], None],
    ) -> None:
        self.group = ddp.process_group
        self.ranks = distributed.get_world_size(self.group)
        self.reduce: Reduce = self._average
        self.composed = False  # whether the script has a hook of its own
        self._ddp = ddp
        self._interval, self._samples, self._scale, self._take = interval, samples, scale, take
        self._count = 0
        self._rounds = 0  # backward passes with communication since the last optimizer step
        self._round: Round | None = None
        self._begun = False
        self._pending: deque[Round] = deque()
        self._views: set[int] = set()  # storages of buckets, which may be the gradients themselves
        self._divides = False

    def register(self) -> None:
        """Begin; ``DistributedDataParallel`` takes one hook, and only before the first backward."""
        if self._ddp.gradient_as_bucket_view:
            self._ddp.register_forward_pre_hook(self._before_forward)
        # Its own register_comm_hook would keep this object where the model is pickled from.
        distributed._register_comm_hook(self._ddp.reducer, self, _hook)

    def compose(self, state: object, hook: Callable[..., Future[torch.Tensor]]) -> str | None:
        """Average with a hook of the script from now on; return why it cannot be measured, if so."""
        if self.composed:
            raise RuntimeError("register_comm_hook can only be called once")
        self.composed = True
        self.reduce = functools.partial(hook, state)
        if hook in _AVERAGING:
            return None
        self._interval = 0
        return f"the script's communication hook {hook.__name__} does not return the mean gradient"

    def hook(self, bucket: distributed.GradBucket) -> Future[torch.Tensor]:
        """Average a bucket over the ranks, and measure it before and after."""
        if not self._begun:
            self._begin()
        measured = self._round
        if measured is not None:
            measured.each.append(squared_norm(bucket.buffer()))
        future = self.reduce(bucket)
        if measured is not None:
            mean = measured.mean

            def measure(done: Future[torch.Tensor]) -> torch.Tensor:
                result = done.value()
                mean.append(squared_norm(result.flatten()))
                return result

            future = future.then(measure)
        if bucket.is_last():
            self._end(bucket)
        return future

    def after_step(self) -> None:
        """Begin another optimizer step."""
        self._rounds = 0

    def flush(self) -> None:
        """Take in all that is measured. No collective call."""
        while self._pending:
            self._take_in(self._pending.popleft())

    def _before_forward(self, ddp: DistributedDataParallel, _arguments: Any) -> None:
        # DDP multiplies gradients by 1/N, but divides by N those that already lie in a bucket.
        if ddp.gradient_as_bucket_view and ddp.require_backward_grad_sync:
            gradient = next((p.grad for p in ddp.parameters() if p.grad is not None), None)
            views = self._views
            self._divides = gradient is not None and _storage(gradient) in views

    def _begin(self) -> None:
        self._begun = True
        if self._interval and self._count % self._interval == 0:
            self._round = Round(self._scale())
        self._count += 1
        while self._pending and _is_ready(self._pending[0]):
            self._take_in(self._pending.popleft())

    def _end(self, bucket: distributed.GradBucket) -> None:
        """Sum over the ranks what only this one knows; every rank gets here in the same order."""
        self._begun = False
        measured, self._round = self._round, None
        self._rounds += 1
        if measured is None:
            return
        own = torch.stack(measured.each).sum()
        samples = self._samples()
        # Gradients that were averaged before, and those of a rank without data, do not count.
        usable = samples and self._rounds == 1
        sums = own.new_tensor([0.0, 1.0 / samples if samples else 0.0, 0.0 if usable else 1.0])
        sums[0] = own
        sums[2] += own == 0
        measured.sums = sums
        measured.work = distributed.all_reduce(sums, group=self.group, async_op=True)
        self._pending.append(measured)
        if self._ddp.gradient_as_bucket_view:
            self._views.add(_storage(bucket.buffer()))

    def _take_in(self, measured: Round) -> None:
        measured.work.wait()
        each, inverse, unusable = measured.sums.tolist()
        if unusable:
            return
        scale = float(measured.scale) ** 2
        mean = float(sum(float(norm) for norm in measured.mean))
        ranks = self.ranks
        self._take(Norms(each / ranks / scale, mean / scale, inverse / ranks, ranks))

    def _average(self, bucket: distributed.GradBucket) -> Future[torch.Tensor]:
        """Average as the reducer does without a hook, to the last bit."""
        buffer = bucket.buffer()
        if self._divides:
            buffer.div_(self.ranks)
        else:
            buffer.mul_(1.0 / self.ranks)
        work = distributed.all_reduce(buffer, group=self.group, async_op=True)
        future: Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future


def _hook(watch: GradientWatch, bucket: distributed.GradBucket) -> Future[torch.Tensor]:
    return watch.hook(bucket)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_ready(measured: Round) -> bool:
    return bool(measured.work.is_completed())
