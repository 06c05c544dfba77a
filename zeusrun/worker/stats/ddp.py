"""Measures the gradients of a ``DistributedDataParallel`` from inside its communication hook.

The hook sees each bucket of gradients before and after it is averaged over the ranks. So |g|² and
|ḡ|² cost one read of the bucket each, and one all-reduce of a few numbers a step, which overlaps
the rest of the step and is read in a later one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from zeusrun.worker.stats.module_hooks import ModuleHook
from zeusrun.worker.stats.noise import Norms
from zeusrun.worker.stats.norms import as_number, squared_norm
from zeusrun.worker.stats.over_ranks import OverRanks

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch._C._distributed_c10d import GradBucket
    from torch.futures import Future
    from torch.nn.parallel import DistributedDataParallel

    Reduce = Callable[[GradBucket], Future[Tensor]]

_AVERAGING: Any = (
    default_hooks.allreduce_hook,
    default_hooks.fp16_compress_hook,
    default_hooks.bf16_compress_hook,
)
_REFRESH = 10  # measured steps with the same preconditioner


class Step(NamedTuple):
    """What was measured in a step; ``None`` for what was not asked for, or is not known yet.

    Attributes:
        norms: Of the gradients.
        preconditioned: Of the gradients as Adam scales them.
        variance: Of a rank's gradient, of the kind asked for other than ``trace``.
    """

    norms: Norms
    preconditioned: Norms | None
    variance: float | None


class Round:
    """The norms of one backward pass, while they are computed: tensors of one number each."""

    def __init__(self, scale: float | Tensor, variance: str | None, *, preconditions: bool) -> None:
        self.scale = scale  # of the loss
        self.variance = variance
        self.preconditions = preconditions
        self.each: list[Tensor] = []  # of the buckets of this rank
        self.mean: list[Tensor] = []  # of the averaged ones
        self.preconditioned_each: list[Tensor] = []
        self.preconditioned_mean: list[Tensor] = []
        self.deviations: list[Tensor] = []  # norms of variances
        self.problem: str | None = None  # why this model cannot be measured


class GradientWatch:
    """Measures the gradients of one model.

    Args:
        ddp: The model, with more than one rank.
        interval: Measure every so many backward passes with communication.
        variance: Kind and interval of a variance that needs an all-reduce of all squares, if any.
        samples: Returns the samples of this rank in the present step; 0 if unknown.
        scale: Returns by what the loss is multiplied.
        take: Gets what was measured, some steps later, the same on every rank.
        refuse: Gets a sentence if gradients cannot be measured; the training goes on.
    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        *,
        interval: int,
        variance: tuple[str, int] | None,
        samples: Callable[[], int],
        scale: Callable[[], float | Tensor],
        take: Callable[[Step], None],
        refuse: Callable[[str], None],
    ) -> None:
        self.group = ddp.process_group
        self.ranks = distributed.get_world_size(self.group)
        self.optimizer: Any = None  # one with the state of Adam, once it has stepped
        self._reduce: Reduce = self._average
        self._composed = False  # whether the script has a hook of its own
        self._shares_memory = ddp.gradient_as_bucket_view  # a reference to ddp would keep it alive
        self._interval, self._variance = interval, variance
        self._samples, self._scale, self._take, self._refuse = samples, scale, take, refuse
        self._count = 0
        self._rounds = 0  # backward passes with communication since the last optimizer step
        self._round: Round | None = None
        self._begun = False
        self._over_ranks = OverRanks(self.group, self._take_in)
        self._factors: dict[int, Tensor] = {}  # by bucket
        self._uses = 0  # of them
        self._views: set[int] = set()  # storages of buckets, which may be the gradients themselves
        self._divides = False

    def register(self, ddp: DistributedDataParallel) -> None:
        """Begin; ``DistributedDataParallel`` takes one hook, and only before the first backward."""
        if self._shares_memory:
            ddp.register_forward_pre_hook(_ForwardHook(self._before_forward))
        # Its own register_comm_hook would keep this object where the model is pickled from.
        distributed._register_comm_hook(ddp.reducer, self, _hook)  # type: ignore[attr-defined]

    def compose(self, state: object, hook: Callable[..., Future[Tensor]]) -> str | None:
        """Average with a hook of the script from now on; return why it cannot be measured."""
        if self._composed:
            raise RuntimeError("register_comm_hook can only be called once")
        self._composed = True
        self._reduce = functools.partial(hook, state)
        if hook in _AVERAGING:
            return None
        self._interval, self._variance = 0, None
        return f"the script's communication hook {hook.__name__} does not return the mean gradient"

    def hook(self, bucket: GradBucket) -> Future[Tensor]:
        """Average a bucket over the ranks, and measure it before and after."""
        if not self._begun:
            self._begin()
        measured = self._round
        if measured is None or measured.problem is not None:
            future = self._reduce(bucket)
        else:
            future = self._measure(measured, bucket)
        if bucket.is_last():
            self._end(bucket)
        return future

    def after_step(self, optimizer: Any) -> None:
        """Begin another optimizer step."""
        self._rounds = 0
        self.optimizer = optimizer

    def flush(self) -> None:
        """Take in all that is measured. No collective call."""
        self._over_ranks.flush()

    def _before_forward(self, ddp: DistributedDataParallel, _arguments: object) -> None:
        # DDP multiplies gradients by 1/N, but divides by N those that already lie in a bucket.
        if ddp.require_backward_grad_sync:
            gradient = next((p.grad for p in ddp.parameters() if p.grad is not None), None)
            self._divides = gradient is not None and _storage(gradient) in self._views

    def _begin(self) -> None:
        self._begun = True
        count, self._count = self._count, self._count + 1
        kind, every = self._variance or ("", 0)
        variance = kind if every and count % every == 0 else None
        if (self._interval and count % self._interval == 0) or variance:
            preconditions = self._refresh_factors()
            self._round = Round(self._scale(), variance, preconditions=preconditions)
        self._over_ranks.collect()

    def _measure(self, measured: Round, bucket: GradBucket) -> Future[Tensor]:
        """Average a bucket, and add its norms to those of the backward pass."""
        buffer, factors, squares = bucket.buffer(), None, None
        try:
            measured.each.append(squared_norm(buffer))
            if measured.preconditions and (factors := self._find_factors(bucket)) is not None:
                measured.preconditioned_each.append(squared_norm(buffer * factors))
            squares = buffer.float().square() if measured.variance else None
        except Exception as error:  # noqa: BLE001 - sparse or complex gradients, say
            measured.problem = f"its gradients cannot be measured ({type(error).__name__}: {error})"
            return self._reduce(bucket)  # the same on every rank: it is the same model
        future = self._reduce(bucket)
        whole = future
        if squares is not None:
            work = distributed.all_reduce(squares, group=self.group, async_op=True)
            whole = torch.futures.collect_all([future, work.get_future()]).then(
                lambda done: done.value()[0].value()
            )
        sizes = [gradient.numel() for gradient in bucket.gradients()]

        def finish(done: Future[Tensor]) -> Tensor:
            result = done.value()
            mean = result.flatten()
            measured.mean.append(squared_norm(mean))
            if factors is not None:
                measured.preconditioned_mean.append(squared_norm(mean * factors))
            if squares is not None:
                variances = squares.div_(self.ranks).addcmul_(mean, mean, value=-1).clamp_(min=0)
                parts = (
                    torch.split(variances, sizes)
                    if measured.variance == "per-tensor"
                    else [variances]
                )
                norms = torch.stack([squared_norm(part) for part in parts])
                per_tensor = measured.variance == "per-tensor"
                measured.deviations.append(norms.sqrt().sum() if per_tensor else norms.sum())
            return result

        finished: Future[Tensor] = whole.then(finish)
        return finished

    def _end(self, bucket: GradBucket) -> None:
        """Sum over the ranks what only this one knows; every rank gets here in the same order."""
        self._begun = False
        measured, self._round = self._round, None
        self._rounds += 1
        if self._shares_memory:
            self._views.add(_storage(bucket.buffer()))
        if measured is None:
            return
        if measured.problem is not None:
            self._interval, self._variance = 0, None
            self._refuse(measured.problem)
            return
        own = torch.stack(measured.each).sum()
        preconditioned = torch.zeros_like(own)
        measured.preconditions = len(measured.preconditioned_each) == len(measured.each)
        if measured.preconditions:
            preconditioned = torch.stack(measured.preconditioned_each).sum()
        samples = self._samples()
        # Gradients that were averaged before, and those of a rank without data, do not count.
        unusable = as_number(not samples or self._rounds > 1, own) + (own == 0)
        sums = torch.stack([own, preconditioned, as_number(1 / (samples or 1), own), unusable])
        scale = [as_number(measured.scale, own)]
        equal = (measured.mean, measured.preconditioned_mean, measured.deviations, scale)
        self._over_ranks.add(sums, equal, measured)

    def _take_in(self, numbers: list[float], measured: Round) -> None:
        each, preconditioned_each, inverse, unusable = numbers[:4]
        mean, preconditioned_mean, deviation, scale = numbers[4:]
        if unusable:
            return
        ranks, square = self.ranks, scale**2
        norms = Norms(each / ranks / square, mean / square, inverse / ranks, ranks)
        preconditioned = variance = None
        if measured.preconditions:
            each, mean = preconditioned_each / ranks, preconditioned_mean
            preconditioned = Norms(each / square, mean / square, inverse / ranks, ranks)
        if measured.deviations:
            deviation = deviation if measured.variance == "per-tensor" else deviation**0.5
            variance = deviation / square
        self._take(Step(norms, preconditioned, variance))

    def _refresh_factors(self) -> bool:
        """Drop old factors; return whether there is an Adam to make new ones of."""
        if self.optimizer is None or not _is_adam(self.optimizer):
            return False
        if self._uses % _REFRESH == 0:
            self._factors.clear()
        self._uses += 1
        return True

    def _find_factors(self, bucket: GradBucket) -> Tensor | None:
        """Return by what Adam multiplies each gradient of a bucket; ``None`` if it is not known."""
        index = bucket.index()
        known = self._factors.get(index)
        if known is not None and known.numel() == bucket.buffer().numel():
            return known
        factors = torch.zeros_like(bucket.buffer())
        places = {id(p): group for group in self.optimizer.param_groups for p in group["params"]}
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            state = self.optimizer.state.get(parameter) or {}
            group = places.get(id(parameter))
            if group is None or "exp_avg_sq" not in state:
                return None
            step = torch.as_tensor(state["step"], dtype=torch.float64)  # may be on the device
            corrected = state["exp_avg_sq"] / (1 - group["betas"][1] ** step)
            offset = gradient.storage_offset() - bucket.buffer().storage_offset()
            part = factors.as_strided(gradient.size(), gradient.stride(), offset)
            part.copy_(corrected.sqrt_().add_(group["eps"]).reciprocal_())
        self._factors[index] = factors
        return factors

    def _average(self, bucket: GradBucket) -> Future[Tensor]:
        """Average as the reducer does without a hook, to the last bit."""
        buffer = bucket.buffer()
        if self._divides:
            buffer.div_(self.ranks)
        else:
            buffer.mul_(1.0 / self.ranks)
        work = distributed.all_reduce(buffer, group=self.group, async_op=True)
        future: Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future


class _ForwardHook(ModuleHook):
    """As ``ModuleHook``, but compiled models call it, too."""

    def __call__(self, *arguments: Any) -> None:
        """Call the function."""
        self._call(*arguments)


def _hook(watch: GradientWatch, bucket: GradBucket) -> Future[Tensor]:
    return watch.hook(bucket)


def _is_adam(optimizer: Any) -> bool:
    state = next(iter(optimizer.state.values()), None)
    return isinstance(state, dict) and "exp_avg_sq" in state and "step" in state


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
