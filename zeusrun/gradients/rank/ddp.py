"""Measures the gradients of a ``DistributedDataParallel`` in its communication hook.

The hook gets each bucket of gradients before and after it is averaged over the ranks. So |g|² and
|ḡ|² cost one read of the bucket each, and one all-reduce of a few numbers a step. It overlaps the
rest of the step, and its result is read in a later step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from zeusrun.gradients.rank.gradients import DeferredNumbers, add_up, squared_norm
from zeusrun.gradients.rank.noise import Norms

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch._C._distributed_c10d import GradBucket
    from torch.futures import Future
    from torch.nn.parallel import DistributedDataParallel

    from zeusrun.gradients.rank.noise import Measuring

    Reduce = Callable[[GradBucket], Future[Tensor]]

STEPS = 8
"""Training steps between two all-reduces.

One in each step takes 1.3 ms of it on gloo and two shared cores; one in every eighth, 0.1 ms.
"""


class BackwardPass:
    """The norms of one backward pass, while they are computed: tensors of one number each."""

    def __init__(self, scale: float | Tensor) -> None:
        self.scale = scale  # of the loss
        self.each: list[Tensor] = []  # of this rank's buckets
        self.mean: list[Tensor] = []  # of the averaged buckets
        self.is_measurable = True  # on all ranks
        self.failed = False  # on this rank


class GradientWatch:
    """Measures the gradients of one ``DistributedDataParallel``.

    Args:
        ddp: The model, with more than one rank.
        how: What to measure, and whom to tell.
    """

    follows_copies = True  # also steps of an optimizer that has copies of the parameters

    def __init__(self, ddp: DistributedDataParallel, how: Measuring) -> None:
        self.group = ddp.process_group
        self.ranks = distributed.get_world_size(self.group)
        self.behind = 0  # measured steps that are not received yet
        self._deferred = DeferredNumbers(self._receive_sums)
        self._size = max(1, STEPS // how.interval)  # measured steps that share an all-reduce
        self._waiting: list[tuple[Tensor, BackwardPass]] = []  # for it
        self._started: tuple[Any, Tensor, list[tuple[Tensor, BackwardPass]]] | None = None
        self._how, self._interval = how, how.interval
        self._reduce: Reduce = lambda bucket: average(bucket.buffer(), self.group)
        self._synced: Any = None
        self._says = True  # that it cannot be measured
        self._count = 0  # backward passes with communication
        self._since_step = 0  # the same since the last optimizer step
        self._backward: BackwardPass | None = None
        self._has_begun = False  # the present backward pass
        self._failed = False  # in any backward pass
        # DDP takes only one hook, and only before the first backward pass. Its own
        # register_comm_hook would add this object to what is pickled with the model.
        register: Any = distributed._register_comm_hook  # type: ignore[attr-defined]
        register(ddp.reducer, self, GradientWatch.hook)

    def after_step(self) -> None:
        """Begin another optimizer step."""
        self._since_step = 0

    def flush(self) -> None:
        """Receive all that is all-reduced. No collective call, so the last steps may be lost."""
        self._collect()
        self._deferred.flush()

    def follow(self, synced: Any) -> None:
        """Average by the hook of a ``SyncedModel``; measure only where it returns the mean."""
        self._synced, self._reduce = synced, synced.hook

    def hook(self, bucket: GradBucket) -> Future[Tensor]:
        """Average a bucket over the ranks, and measure it before and after."""
        if not self._has_begun:
            self._begin()
        backward = self._backward
        if backward is None or not backward.is_measurable:
            future = self._reduce(bucket)
        else:
            future = self._measure(backward, bucket)
        if bucket.is_last():
            self._end(bucket)
        return future

    def _begin(self) -> None:
        self._has_begun = True
        count, self._count = self._count, self._count + 1
        if self._synced is not None and not self._synced.is_mean:
            if self._says:
                self._says = False
                self._how.fail(
                    "sync of the job file does not return the mean gradient, so nothing is "
                    "measured: remove watch, or sync"
                )
        elif self._interval and count % self._interval == 0:
            self._backward = BackwardPass(self._how.scale())
        self._collect()

    def _measure(self, backward: BackwardPass, bucket: GradBucket) -> Future[Tensor]:
        """Average a bucket, and add its norms to those of the backward pass."""
        buffer = bucket.buffer()
        if buffer.is_sparse or buffer.is_complex():  # so it is on every rank
            backward.is_measurable = False
            return self._reduce(bucket)
        try:
            backward.each.append(squared_norm(buffer))
        except Exception as error:  # noqa: BLE001 - out of memory, say
            self._skip(backward, error)

        def finish(done: Future[Tensor]) -> Tensor:
            result = done.value()
            try:
                backward.mean.append(squared_norm(result.flatten()))
            except Exception as error:  # noqa: BLE001 - the training goes on
                self._skip(backward, error)
            return result

        finished: Future[Tensor] = self._reduce(bucket).then(finish)
        return finished

    def _end(self, bucket: GradBucket) -> None:
        """Sum over the ranks; every rank calls this in the same order."""
        self._has_begun = False
        backward, self._backward = self._backward, None
        self._since_step += 1
        if backward is None:
            return
        if not backward.is_measurable:
            self._interval = 0
            self._how.fail("it has sparse or complex gradients, which cannot be measured")
            return
        each, samples = backward.each, self._how.samples()
        # Gradients that were averaged before, and those of a rank without data, are not used.
        is_unusable = backward.failed or not samples or self._since_step > 1
        flags = [is_unusable, sum(each) == 0]
        numbers = add_up((each, [1 / (samples or 1)], flags), like=bucket.buffer())
        self.behind += 1
        self._waiting.append((numbers, backward))
        if len(self._waiting) >= self._size:
            sums = torch.stack([numbers for numbers, _ in self._waiting])
            work = distributed.all_reduce(sums, group=self.group, async_op=True)
            self._started, self._waiting = (work, sums, self._waiting), []

    def _collect(self) -> None:
        """Receive earlier steps, once in every step; on a CPU, all that were all-reduced.

        So ranks that compute on CPUs receive a step at the same place. A GPU may be some steps
        behind: there, ``work.wait`` blocks only the device's stream, and the copy is polled. Until
        then, ``backward`` is kept, because its numbers may be computed on another stream.
        """
        if self._started is not None:
            (work, sums, steps), self._started = self._started, None
            work.wait()
            for numbers, (_, backward) in zip(sums.unbind(), steps, strict=True):
                equal = add_up((backward.mean, [backward.scale]), numbers)  # on all ranks
                self._deferred.add(torch.cat([numbers, equal]), backward)
        self._deferred.flush(wait=False)

    def _receive_sums(self, numbers: list[float], backward: BackwardPass) -> None:
        self.behind -= 1
        each, inverse, unusable, mean, scale = numbers
        if not (unusable or backward.failed):
            ranks, square = self.ranks, scale**2
            norms = Norms(each / ranks / square, mean / square, inverse / ranks, ranks)
            self._how.receive(norms, "ranks")

    def _skip(self, backward: BackwardPass, error: Exception) -> None:
        """Report an error once; this rank still takes part in the all-reduces of the others."""
        backward.failed = True
        if not self._failed:
            self._failed = True
            text = f"gradients were not measured ({type(error).__name__}: {error})"
            self._how.fail_here(text)


def average(buffer: Tensor, group: distributed.ProcessGroup) -> Future[Tensor]:
    """Average as DDP's reducer does without a hook.

    DDP's reducer divides gradients that are in their bucket already (``gradient_as_bucket_view``,
    and gradients that are set to zero). If the number of ranks is no power of two, this may differ
    in the last bit.
    """
    buffer.mul_(1.0 / group.size())
    work = distributed.all_reduce(buffer, group=group, async_op=True)
    future: Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future
