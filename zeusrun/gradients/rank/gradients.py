"""Squared norms of gradients, and how they are measured on one rank: by its micro-batches."""

from __future__ import annotations

import functools
import math
import weakref
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from zeusrun.gradients.rank.noise import Norms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from zeusrun.gradients.rank.noise import Measuring

_ROW = 1 << 16  # elements; a longer sum of squares in float32 has an error of 1e-4
_MAX_ALONE = 10  # optimizer steps in a row with a single gradient, before a warning


def squared_norm(flat: Tensor) -> Tensor:
    """Return the squared norm of a tensor of shape ``(n,)`` as one float64, without a copy."""
    if flat.numel() <= _ROW:
        norm: Tensor = torch.linalg.vector_norm(flat, dtype=torch.float32)
        return norm.double().square_()
    whole = flat.numel() // _ROW * _ROW
    norms = torch.linalg.vector_norm(flat[:whole].view(-1, _ROW), dim=1, dtype=torch.float32)
    rest = torch.linalg.vector_norm(flat[whole:], dtype=torch.float32)
    total: Tensor = norms.double().square().sum() + rest.double().square()
    return total


def as_number(value: float | Tensor, like: Tensor) -> Tensor:
    """Return a number as one float64 on the device of a tensor, without waiting for the device."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(like.device, torch.float64, non_blocking=True).reshape(())
    return like.new_full((), value, dtype=torch.float64)  # torch.tensor would copy, and wait


def add_up(parts: Sequence[Sequence[float | Tensor]], like: Tensor) -> Tensor:
    """Return the sum of each part, in float64 on the device of a tensor, without waiting for it."""
    if like.is_cpu:  # there is nothing to wait for, and numbers are faster than tensors of one
        sums = [sum(map(float, part)) for part in parts]
        return torch.tensor(sums, dtype=torch.float64)
    zero = as_number(0, like)
    return torch.stack([sum((as_number(x, like) for x in part), zero) for part in parts])


class DeferredNumbers:
    """Passes on tensors as numbers, in their order, once the device has computed them.

    Args:
        receive: Called with the numbers of one step and the extra values given with them.
    """

    def __init__(self, receive: Callable[..., None]) -> None:
        self._receive = receive
        self._queue: deque[tuple[Tensor, Any, tuple[Any, ...]]] = deque()

    def add(self, numbers: Tensor, *extra: Any) -> None:
        """Queue a tensor of shape ``(n,)``, and pass on what is complete."""
        event = None
        host = numbers.detach().to("cpu", non_blocking=True)
        if numbers.is_cuda:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._queue.append((host, event, extra))
        self.flush(wait=numbers.device.type not in {"cpu", "cuda"})

    def flush(self, *, wait: bool = True) -> None:
        """Pass on what is complete; with ``wait``, everything."""
        while self._queue:
            host, event, extra = self._queue[0]
            if event is not None and not event.query():
                if not wait:
                    return
                event.synchronize()
            self._queue.popleft()
            self._receive(host.tolist(), *extra)


def hook(method: Callable[..., None]) -> Callable[..., None]:
    """Return a method as a hook: it runs in measured steps only, and never raises."""

    @functools.wraps(method)
    def guarded(self: Gradients, *arguments: Any) -> None:
        if self._is_on:
            try:
                method(self, *arguments)
            except Exception as error:  # noqa: BLE001 - the training goes on
                self._give_up(error)

    return guarded


class Gradients:
    """Compares the whole gradients of a step's micro-batches, as ranks are compared.

    A backward pass adds the gradients of the model to ``Parameter.grad``.

    Args:
        parameters: Of the model.
        how: What to measure, and whom to tell; ``fail`` is called once, if this cannot measure it.
    """

    follows_copies = False  # steps of an optimizer that has copies of the parameters

    def __init__(self, parameters: Iterable[Any], how: Measuring) -> None:
        self._how = how
        self._deferred = DeferredNumbers(self._receive_numbers)
        self._handles: list[Any] = []
        self._steps = 0
        self._is_on = True  # whether the present step is measured
        self._problem: str | None = None
        trained = [p for p in parameters if p.requires_grad]
        self._parameters = [weakref.ref(p) for p in trained]  # the script may drop the model
        self._usual_passes = 0  # backward passes in a step
        self._alone = 0  # measured steps in a row with a single gradient
        self._begin_step()
        for index, parameter in enumerate(trained):
            before = functools.partial(self._before_add, index)
            after = functools.partial(self._after_add, index)
            self._handles.append(parameter.register_hook(before))
            self._handles.append(parameter.register_post_accumulate_grad_hook(after))

    def close(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._is_on = [], False

    def after_step(self) -> None:
        """End an optimizer step."""
        if not self._handles:
            return
        if self._is_on:
            try:
                self._end_step()
            except Exception as error:  # noqa: BLE001 - the training goes on
                self._give_up(error)
        self._steps += 1
        self._is_on = self._steps % self._how.interval == 0 and self._problem is None
        self._begin_step()
        if self._problem is not None:  # only here, because a hook must not remove hooks
            self.close()
            self._how.fail(self._problem)

    def flush(self) -> None:
        """Receive all that is measured."""
        self._deferred.flush()

    def _give_up(self, error: Exception) -> None:
        text = f"measuring ended with an error ({type(error).__name__}: {error})"
        self._problem = self._problem or text
        self._is_on = False

    def _begin_step(self) -> None:
        self._discarded = 0  # samples whose gradients were thrown away
        self._begin_sum()

    def _begin_sum(self) -> None:
        self._passes = [0] * len(self._parameters)  # backward passes so far
        self._sizes: list[int] = []  # samples, after each backward pass
        self._each: list[Tensor] = []  # |g|² of a micro-batch and a parameter
        self._sum: dict[int, Tensor] = {}  # |Σg|² by parameter
        self._loss_scale: float | Tensor = 1.0

    @hook
    def _before_add(self, index: int, gradient: Tensor) -> None:
        """Measure the gradient of one micro-batch."""
        parameter = self._parameters[index]()
        if self._passes[index] and parameter is not None and parameter.grad is None:
            self._discarded = self._sizes[-1]  # the script has set it to None without a step
            self._begin_sum()
        if self._passes[index] == len(self._sizes):  # the first parameter of a backward pass
            if not self._sizes:
                self._loss_scale = self._how.scale()
            self._sizes.append(self._how.samples())
        self._passes[index] = len(self._sizes)
        if gradient.is_sparse:
            self._problem = "it has sparse gradients, which cannot be measured on one rank"
            self._is_on = False
        else:
            self._each.append(_square(gradient.detach()))

    @hook
    def _after_add(self, index: int, parameter: Tensor) -> None:
        """Measure the sum of the gradients so far."""
        passes = len(self._sizes)
        if parameter.grad is not None and passes > 1 and self._usual_passes in {0, passes}:
            self._sum[index] = _square(parameter.grad.detach())

    def _end_step(self) -> None:
        if not self._sizes:
            return
        passes = len(self._sizes)
        samples = self._sizes[-1] - self._discarded
        usual, self._usual_passes = self._usual_passes, passes
        ends = pairwise([self._discarded, *self._sizes])
        shares: list[float] = [now - before for before, now in ends]
        if passes > 1 and passes == self._how.parts and samples > 0 and not all(shares):
            shares = [samples / passes] * passes
        if samples <= 0 or (usual and passes != usual):
            return
        if passes == 1 or min(shares) <= 0:  # or several losses of the same samples
            self._alone += 1
            if self._alone == _MAX_ALONE:
                self._problem = (
                    "a step has one gradient, and nothing to compare it with: the noise scale "
                    "needs gradient accumulation, or several ranks"
                )
            return
        self._alone = 0
        inverse = sum(1 / share for share in shares) / passes
        each = torch.stack(self._each).sum(dtype=torch.float64)
        total = torch.stack(list(self._sum.values())).sum(dtype=torch.float64)
        numbers = [each, total, as_number(self._loss_scale, each)]
        self._deferred.add(torch.stack(numbers), passes, inverse)

    def _receive_numbers(self, numbers: list[float], parts: int, inverse: float) -> None:
        each, total, scale = numbers
        square = scale * scale if math.isfinite(scale) else math.nan
        # The loss of each micro-batch is divided by their number, so each |g|² is too small.
        norms = (
            Norms(parts * each / square, total / square, inverse, parts)
            if square
            else Norms(math.nan, math.nan, 1.0, 2)
        )
        self._how.receive(norms, "micro_batches")


def _square(tensor: Tensor) -> Tensor:
    return squared_norm(tensor.reshape(-1)).float()
