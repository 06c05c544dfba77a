"""Compares whole gradients on one rank: of the micro-batches of a step, or of consecutive steps.

The micro-batches of a step are compared as ranks are. If a step has only one, two consecutive steps
are compared. The model changes between them, and this change counts as noise. So the result is
biased upwards.
"""

from __future__ import annotations

import functools
import math
import weakref
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from zeusrun.worker.stats.noise import Norms
from zeusrun.worker.stats.norms import as_number, squared_norm
from zeusrun.worker.stats.one_rank_meter import OneRankMeter, hook

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


class Gradients(OneRankMeter):
    """Measures the gradients of one model, which a backward pass adds to ``Parameter.grad``.

    Args:
        parameters: Of the model.
        options: Those of ``OneRankMeter``; consecutive steps are measured at most every second one.
    """

    def __init__(self, parameters: Iterable[Any], **options: Any) -> None:
        super().__init__(**options)
        trained = [p for p in parameters if p.requires_grad]
        self._parameters = [weakref.ref(p) for p in trained]  # the script may drop the model
        self._how: str | None = None  # not decided yet
        self._usual_passes = 0  # backward passes in a step
        self._kept: dict[int, Tensor] = {}  # the gradient of the step before
        self._kept_samples = 0
        self._kept_scale: float | Tensor = 1.0
        self._begin_step()
        for index, parameter in enumerate(trained):
            before = functools.partial(self._before_add, index)
            after = functools.partial(self._after_add, index)
            self._handles.append(parameter.register_hook(before))
            self._handles.append(parameter.register_post_accumulate_grad_hook(after))

    def close(self) -> None:
        """Remove all hooks."""
        super().close()
        self._kept = {}

    def _begin_step(self) -> None:
        interval = self._interval if self._how == "micro_batches" else max(2, self._interval)
        position = self._steps % interval
        self._compares = self._how == "consecutive" and position == 1 and bool(self._kept)
        self._is_on = (position == 0 and self._problem is None) or self._compares
        self._discarded = 0  # samples whose gradients were thrown away
        self._begin_sum()

    def _begin_sum(self) -> None:
        self._passes = [0] * len(self._parameters)  # backward passes so far
        self._sizes: list[int] = []  # samples, after each backward pass
        self._each: list[Tensor] = []  # |g|² of a micro-batch and a parameter
        self._sum: dict[int, Tensor] = {}  # |Σg|² by parameter
        self._dots: dict[int, Tensor] = {}  # with the gradient of the step before
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
                self._loss_scale = self._scale()
            self._sizes.append(self._samples())
        self._passes[index] = len(self._sizes)
        if gradient.is_sparse:
            self._problem = "it has sparse gradients, which cannot be measured on one rank"
            self._is_on = False
        elif self._how != "consecutive":
            self._each.append(_square(gradient.detach()))

    @hook
    def _after_add(self, index: int, parameter: Tensor) -> None:
        """Measure the sum of the gradients so far."""
        if parameter.grad is None:
            return
        gradient = parameter.grad.detach()
        passes = len(self._sizes)
        if self._compares:
            self._sum[index] = _square(gradient)
            if (kept := self._kept.get(index)) is not None:
                self._dots[index] = _dot(gradient, kept)
        elif self._how == "consecutive":
            kept = self._kept.setdefault(index, torch.empty_like(gradient))
            kept.copy_(gradient)
        elif passes > 1 and self._usual_passes in {0, passes}:
            self._sum[index] = _square(gradient)

    def _end_step(self) -> None:
        if not self._sizes:
            return
        passes = len(self._sizes)
        samples = self._sizes[-1] - self._discarded
        if self._how == "consecutive":
            self._end_consecutive(samples)
            return
        usual, self._usual_passes = self._usual_passes, passes
        shares: list[float] = [
            now - before for before, now in pairwise([self._discarded, *self._sizes])
        ]
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
        self._deferred.add(torch.stack(numbers), passes, inverse)

    def _end_consecutive(self, samples: int) -> None:
        if not self._compares:
            self._kept_samples, self._kept_scale = samples, self._loss_scale
        elif samples > 0 and self._kept_samples > 0 and self._dots:
            own = torch.stack(list(self._sum.values())).sum(dtype=torch.float64)
            earlier = torch.stack([_square(kept) for kept in self._kept.values()]).sum()
            dot = torch.stack(list(self._dots.values())).sum(dtype=torch.float64)
            scales = [as_number(s, own) for s in (self._loss_scale, self._kept_scale)]
            inverse = (1 / samples + 1 / self._kept_samples) / 2
            self._deferred.add(torch.stack([own, earlier.double(), dot, *scales]), 2, inverse)
            self._kept_samples = 0

    def _receive_numbers(self, numbers: list[float], parts: int, inverse: float) -> None:
        if not all(map(math.isfinite, numbers)):
            self._receive(Norms(math.nan, math.nan, 1.0, 2), self._how or "consecutive")
            return
        if self._how is None:
            self._how = "consecutive" if math.isnan(inverse) else "micro_batches"
        if self._how == "consecutive":
            if len(numbers) > 3:  # of two steps
                own, earlier, dot, scale, kept_scale = numbers
                own, earlier = own / scale**2, earlier / kept_scale**2
                mean = (own + earlier + 2 * dot / (scale * kept_scale)) / 4
                self._receive(Norms((own + earlier) / 2, mean, inverse, 2), self._how)
        elif not math.isnan(inverse):
            each, total, scale = numbers
            square = scale * scale
            # The loss of each micro-batch is divided by their number, so each |g|² is too small.
            self._receive(Norms(parts * each / square, total / square, inverse, parts), self._how)


def _dot(one: Tensor, other: Tensor) -> Tensor:
    if one.dtype == torch.float32:
        return torch.dot(one.reshape(-1), other.reshape(-1))  # no copy
    return torch.sum(one * other, dtype=torch.float32)


def _square(tensor: Tensor) -> Tensor:
    return squared_norm(tensor.reshape(-1)).float()
