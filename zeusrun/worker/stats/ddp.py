"""Measures the gradients of a ``DistributedDataParallel`` in its communication hook.

The hook gets each bucket of gradients before and after it is averaged over the ranks. So |g|² and
|ḡ|² cost one read of the bucket each, and one all-reduce of a few numbers a step. It overlaps the
rest of the step, and its result is read in a later step.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from zeusrun.worker.stats.module_hooks import ModuleHook
from zeusrun.worker.stats.noise import Norms
from zeusrun.worker.stats.numbers import add_up, squared_norm
from zeusrun.worker.stats.rank_meter import RankMeter

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch._C._distributed_c10d import GradBucket
    from torch.futures import Future
    from torch.nn.parallel import DistributedDataParallel

    from zeusrun.worker.stats.model import Model

    Reduce = Callable[[GradBucket], Future[Tensor]]

_AVERAGING: Any = (
    default_hooks.allreduce_hook,
    default_hooks.fp16_compress_hook,
    default_hooks.bf16_compress_hook,
)


class BackwardPass:
    """The norms of one backward pass, while they are computed: tensors of one number each."""

    def __init__(self, scale: float | Tensor) -> None:
        self.scale = scale  # of the loss
        self.each: list[Tensor] = []  # of this rank's buckets
        self.mean: list[Tensor] = []  # of the averaged buckets
        self.is_measurable = True  # on all ranks
        self.failed = False  # on this rank


class GradientWatch(RankMeter):
    """Measures the gradients of one ``DistributedDataParallel``.

    Args:
        ddp: The model, with more than one rank.
        model: Receives the measurements.
        options: Those of ``RankMeter``.
    """

    def __init__(self, ddp: DistributedDataParallel, model: Model, **options: Any) -> None:
        super().__init__(ddp.process_group, model, **options)
        self.group = ddp.process_group
        self._reduce: Reduce = self._average
        self._is_composed = False  # whether the script has registered a hook
        self._shares_memory = ddp.gradient_as_bucket_view  # a reference to ddp would keep it alive
        self._backward: BackwardPass | None = None
        self._has_begun = False  # the present backward pass
        self._buckets: set[int] = set()  # their storages, which may be those of the gradients
        self._divides = False  # whether the reducer would divide by N now
        self._register(ddp)

    def _register(self, ddp: DistributedDataParallel) -> None:
        """Register the hook; DDP takes only one, and only before the first backward pass."""
        if self._shares_memory:
            ddp.register_forward_pre_hook(_ForwardHook(self._before_forward))
        # DDP's own register_comm_hook would add this object to what is pickled with the model.
        distributed._register_comm_hook(ddp.reducer, self, _hook)  # type: ignore[attr-defined]

    def compose(self, state: object, hook: Callable[..., Future[Tensor]]) -> str | None:
        """Average with a hook of the script; return why it cannot be measured, or ``None``."""
        if self._is_composed:
            raise RuntimeError("register_comm_hook can only be called once")
        self._is_composed = True
        self._reduce = functools.partial(hook, state)
        if hook in _AVERAGING:
            return None
        self._interval = 0
        return f"the script's communication hook {hook.__name__} does not return the mean gradient"

    def hook(self, bucket: GradBucket) -> Future[Tensor]:
        """Average a bucket over the ranks, and measure it before and after."""
        if not self._has_begun:
            self._begin()
        if self._shares_memory:
            self._buckets.add(_storage(bucket.buffer()))
        backward = self._backward
        if backward is None or not backward.is_measurable:
            future = self._reduce(bucket)
        else:
            future = self._measure(backward, bucket)
        if bucket.is_last():
            self._end(bucket)
        return future

    def _before_forward(self, ddp: DistributedDataParallel, _arguments: object) -> None:
        # DDP multiplies gradients by 1/N, but divides by N those that are already in a bucket.
        if ddp.require_backward_grad_sync:
            gradients = [p.grad for p in ddp.parameters() if p.grad is not None]
            self._divides = any(map(self._is_in_bucket, gradients))

    def _is_in_bucket(self, gradient: Tensor) -> bool:
        # After buckets have been rebuilt, the new ones are not known yet; each may have several.
        has_others = gradient.untyped_storage().nbytes() > gradient.nbytes
        return has_others or _storage(gradient) in self._buckets

    def _begin(self) -> None:
        self._has_begun = True
        count, self._count = self._count, self._count + 1
        if self._interval and count % self._interval == 0:
            self._backward = BackwardPass(self._scale())
        self._rank_sums.collect()

    def _measure(self, backward: BackwardPass, bucket: GradBucket) -> Future[Tensor]:
        """Average a bucket, and add its norms to those of the backward pass."""
        buffer = bucket.buffer()
        if buffer.is_sparse or buffer.is_complex():  # so it is on every rank
            backward.is_measurable = False
            return self._reduce(bucket)
        try:
            backward.each.append(squared_norm(buffer))
        except Exception as error:  # noqa: BLE001 - out of memory, say
            self._fail_in(backward, error)

        def finish(done: Future[Tensor]) -> Tensor:
            result = done.value()
            try:
                backward.mean.append(squared_norm(result.flatten()))
            except Exception as error:  # noqa: BLE001 - the training goes on
                self._fail_in(backward, error)
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
            self._report_problem("it has sparse or complex gradients, which cannot be measured")
            return
        each, samples = backward.each, self._samples()
        # Gradients that were averaged before, and those of a rank without data, are not used.
        is_unusable = backward.failed or not samples or self._since_step > 1
        flags = [is_unusable, sum(each) == 0]
        numbers = add_up((each, [1 / (samples or 1)], flags), like=bucket.buffer())
        self._rank_sums.add(numbers, (backward.mean, [backward.scale]), backward)

    def _receive_sums(self, numbers: list[float], extra: BackwardPass) -> None:
        each, inverse, unusable, mean, scale = numbers
        if not (unusable or extra.failed):
            ranks, square = self.ranks, scale**2
            norms = Norms(each / ranks / square, mean / square, inverse / ranks, ranks)
            self._receive(norms, "ranks")

    def _fail_in(self, backward: BackwardPass, error: Exception) -> None:
        backward.failed = True
        self._fail(f"gradients were not measured ({type(error).__name__}: {error})")

    def _average(self, bucket: GradBucket) -> Future[Tensor]:
        """Average exactly as the reducer does without a hook, to the last bit."""
        buffer = bucket.buffer()
        if self._divides:
            buffer.div_(self.ranks)
        else:
            buffer.mul_(1.0 / self.ranks)
        work = distributed.all_reduce(buffer, group=self.group, async_op=True)
        future: Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future


class _ForwardHook(ModuleHook):
    """A ``ModuleHook`` that compiled models also call."""

    def __call__(self, *arguments: Any) -> None:
        """Call the function."""
        self._call(*arguments)


def _hook(watch: GradientWatch, bucket: GradBucket) -> Future[Tensor]:
    return watch.hook(bucket)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
