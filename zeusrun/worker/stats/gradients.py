"""Compares whole gradients on one rank: of the micro-batches of a step, or of consecutive steps.

Micro-batches are to a step what ranks are to it. Where a step has one, two consecutive steps stand
for two ranks. The model changes between them, which counts as noise, so this is biased upwards.
"""

from __future__ import annotations

import functools
import math
import weakref
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from zeusrun.worker.stats.later import Later
from zeusrun.worker.stats.noise import Norms
from zeusrun.worker.stats.norms import as_number, squared_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor


class Gradients:
    """Measures the gradients of one model, which a backward pass adds to ``Parameter.grad``.

    Args:
        parameters: Of the model.
        interval: Measure every so many optimizer steps; consecutive steps at most every second.
        samples: Returns the samples since the last optimizer step; 0 if unknown.
        parts: In how many micro-batches ``samples`` come if they do not grow with each.
        scale: Returns by what the loss is multiplied.
        take: Gets the norms of a step, and how they were found.
        fail: Called once, with the reason, if this model cannot be measured so.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        *,
        interval: int,
        samples: Callable[[], int],
        parts: int,
        scale: Callable[[], float | Tensor],
        take: Callable[[Norms, str], None],
        fail: Callable[[str], None],
    ) -> None:
        trained = [p for p in parameters if p.requires_grad]
        self._parameters = [weakref.ref(p) for p in trained]  # the script may drop the model
        self._interval, self._samples, self._parts = interval, samples, parts
        self._scale, self._take, self._fail = scale, take, fail
        self._later = Later(self._take_in)
        self._how: str | None = None  # not decided yet
        self._problem: str | None = None
        self._steps = self._usual = 0  # the last: micro-batches in a step
        self._kept: dict[int, Tensor] = {}  # the gradient of the step before
        self._kept_samples = 0
        self._kept_scale: float | Tensor = 1.0
        self._base = 0  # samples whose gradients were thrown away
        self._begin_step()
        self._handles: list[Any] = []
        for index, parameter in enumerate(trained):
            before = functools.partial(self._before, index)
            after = functools.partial(self._after, index)
            self._handles.append(parameter.register_hook(before))
            self._handles.append(parameter.register_post_accumulate_grad_hook(after))

    def close(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._on = [], False
        self._kept = {}

    def after_step(self) -> None:
        """End an optimizer step."""
        if not self._handles:
            return
        if self._on and self._sizes:
            try:
                self._end_step()
            except Exception as error:  # noqa: BLE001 - the training goes on
                self._give_up(error)
        self._steps += 1
        self._base = 0
        self._begin_step()
        if self._problem is not None:
            self.close()
            self._fail(self._problem)

    def flush(self) -> None:
        """Take in all that is measured."""
        self._later.flush()

    def _begin_step(self) -> None:
        interval = self._interval if self._how == "micro_batches" else max(2, self._interval)
        position = self._steps % interval
        self._on = position == 0 and self._problem is None
        self._compares = self._how == "consecutive" and position == 1 and bool(self._kept)
        self._on = self._on or self._compares
        self._begin_sum()

    def _begin_sum(self) -> None:
        self._seen = [0] * len(self._parameters)  # backward passes so far
        self._sizes: list[int] = []  # samples, after each backward pass
        self._each: list[Tensor] = []  # |g|² of a micro-batch and a parameter
        self._sum: dict[int, Tensor] = {}  # |Σg|² by parameter
        self._dots: dict[int, Tensor] = {}  # with the gradient of the step before
        self._loss_scale: float | Tensor = 1.0

    def _before(self, index: int, gradient: Tensor) -> None:
        """Take in the gradient of one micro-batch."""
        if not self._on:
            return
        try:
            seen = self._seen[index]
            parameter = self._parameters[index]()
            if (
                seen and parameter is not None and parameter.grad is None
            ):  # thrown away, without a step
                self._base = self._sizes[-1]
                self._begin_sum()
                seen = 0
            if seen == len(self._sizes):
                self._sizes.append(self._samples())
                if not seen:
                    self._loss_scale = self._scale()
            self._seen[index] = len(self._sizes)
            if gradient.is_sparse:
                self._problem = "it has sparse gradients, which cannot be measured on one rank"
                self._on = False
            elif self._how != "consecutive":
                self._each.append(_square(gradient.detach()))
        except Exception as error:  # noqa: BLE001 - the training goes on
            self._give_up(error)

    def _after(self, index: int, parameter: Tensor) -> None:
        """Take in the sum so far."""
        if not self._on or parameter.grad is None:
            return
        try:
            gradient = parameter.grad.detach()
            if self._compares:
                self._sum[index] = _square(gradient)
                if (kept := self._kept.get(index)) is not None:
                    self._dots[index] = _dot(gradient, kept)
            elif self._how == "consecutive":
                kept = self._kept.setdefault(index, torch.empty_like(gradient))
                kept.copy_(gradient)
            elif len(self._sizes) > 1 and (len(self._sizes) == self._usual or not self._usual):
                self._sum[index] = _square(gradient)
        except Exception as error:  # noqa: BLE001 - the training goes on
            self._give_up(error)

    def _end_step(self) -> None:
        passes = len(self._sizes)
        samples = self._sizes[-1] - self._base
        if self._how == "consecutive":
            self._end_consecutive(samples)
            return
        usual, self._usual = self._usual, passes
        shares: list[float] = [now - then for then, now in pairwise([self._base, *self._sizes])]
        if passes > 1 and passes == self._parts and samples > 0 and not all(shares):
            shares = [samples / passes] * passes
        if samples <= 0 or (usual and passes != usual):
            return
        alone = passes == 1 or min(shares) <= 0  # several losses of the same samples
        if alone and self._how is not None:
            return
        inverse = math.nan if alone else sum(1 / share for share in shares) / passes
        each = torch.stack(self._each).sum(dtype=torch.float64)
        total = each if alone else torch.stack(list(self._sum.values())).sum(dtype=torch.float64)
        numbers = [each, total, as_number(self._loss_scale, each)]
        self._later.add(torch.stack(numbers), passes, inverse)

    def _end_consecutive(self, samples: int) -> None:
        if not self._compares:
            self._kept_samples, self._kept_scale = samples, self._loss_scale
        elif samples > 0 and self._kept_samples > 0 and self._dots:
            own = torch.stack(list(self._sum.values())).sum(dtype=torch.float64)
            earlier = torch.stack([_square(kept) for kept in self._kept.values()]).sum()
            dot = torch.stack(list(self._dots.values())).sum(dtype=torch.float64)
            scales = [as_number(s, own) for s in (self._loss_scale, self._kept_scale)]
            inverse = (1 / samples + 1 / self._kept_samples) / 2
            self._later.add(torch.stack([own, earlier.double(), dot, *scales]), 2, inverse)
            self._kept_samples = 0

    def _take_in(self, numbers: list[float], parts: int, inverse: float) -> None:
        if not all(map(math.isfinite, numbers)):
            self._take(Norms(math.nan, math.nan, 1.0, 2), self._how or "consecutive")
            return
        if self._how is None:
            self._how = "consecutive" if math.isnan(inverse) else "micro_batches"
        if self._how == "consecutive":
            if len(numbers) > 3:  # of two steps
                own, earlier, dot, scale, kept_scale = numbers
                own, earlier = own / scale**2, earlier / kept_scale**2
                mean = (own + earlier + 2 * dot / (scale * kept_scale)) / 4
                self._take(Norms((own + earlier) / 2, mean, inverse, 2), self._how)
        elif not math.isnan(inverse):
            each, total, scale = numbers
            square = scale * scale
            # Each micro-batch's loss is divided by their number, or the sum is as much larger.
            self._take(Norms(parts * each / square, total / square, inverse, parts), self._how)

    def _give_up(self, error: Exception) -> None:
        text = f"measuring ended with an error ({type(error).__name__}: {error})"
        self._problem = self._problem or text
        self._on = False


def _dot(one: Tensor, other: Tensor) -> Tensor:
    if one.dtype == torch.float32:
        return torch.dot(one.reshape(-1), other.reshape(-1))  # no copy
    return torch.sum(one * other, dtype=torch.float32)


def _square(tensor: Tensor) -> Tensor:
    return squared_norm(tensor.reshape(-1)).float()
