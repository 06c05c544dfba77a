"""Gradient noise scale and gradient variance, from squared norms of gradients. Pure.

Each of N ranks has the mean gradient g of b samples. With G, the gradient over all data, and Σ, the
covariance of the gradients of single samples:

    E|g|² = |G|² + tr Σ / b      and, for the mean ḡ over the ranks,     E|ḡ|² = |G|² + tr Σ / (bN)

Two equations give |G|² and tr Σ. The noise scale is tr Σ / |G|², in samples (McCandlish et al.,
2018, arXiv:1812.06162, appendix A.1). It is a ratio of two averages, so its range is Fieller's.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_KNOWN_ERRORS = 4.0  # standard errors by which |G|² must exceed 0; fewer select low values
GAUSSIAN90, GAUSSIAN99 = 1.645, 2.576
"""Standard deviations from the middle to the ends of a range of 90 % and of 99 %."""


class Norms(NamedTuple):
    """Squared norms of the gradients of one step.

    Attributes:
        each: Mean over the ranks of |g|².
        mean: |ḡ|².
        inverse: Mean over the ranks of 1 / b, with b the samples of a rank.
        ranks: Number of gradients in the mean; at least 2.
    """

    each: float
    mean: float
    inverse: float
    ranks: int

    @property
    def trace(self) -> float:
        """Estimate of tr Σ; one step's may be negative."""
        return (self.each - self.mean) / (self.inverse * (1 - 1 / self.ranks))

    @property
    def squared_gradient(self) -> float:
        """Estimate of |G|²; one step's may be negative."""
        return (self.ranks * self.mean - self.each) / (self.ranks - 1)

    @property
    def variance(self) -> float:
        """Variance of one of the gradients, summed over its elements; unbiased."""
        return (self.each - self.mean) * self.ranks / (self.ranks - 1)

    @property
    def samples(self) -> float:
        """Samples of the step, over all ranks."""
        return self.ranks / self.inverse


class Measuring(NamedTuple):
    """How the gradients of a model are measured.

    Attributes:
        interval: Measure every so many optimizer steps, or backward passes that communicate.
        samples: Returns the samples of this rank since the last optimizer step; 0 if unknown.
        scale: Returns by what the loss is multiplied.
        receive: Called with the norms of a step, some steps later, and how they were measured.
        fail: Called with the reason, if the model cannot be measured; on every rank.
        fail_here: Called with a problem that only this rank knows of.
        parts: The number of micro-batches in a step, if ``samples`` does not grow with each.
    """

    interval: int
    samples: Callable[[], int]
    scale: Callable[[], Any]
    receive: Callable[[Norms, str], None]
    fail: Callable[[str], None]
    fail_here: Callable[[str], None]
    parts: int = 1


class NoiseEstimate(NamedTuple):
    """A noise scale in samples, with its range of 90 %.

    Where the gradient cannot be told from its noise, only ``low`` is known: it is at least that.
    """

    low: float
    value: float | None
    high: float | None


class NoiseScale:
    """The noise scale over many steps: numerator and denominator are averaged separately.

    Both are exponential moving averages by samples, bias-corrected. So their window is the same
    part of the training at every batch size.

    Attributes:
        half_life: Samples after which a step weighs half.
        done: Samples of the steps that were measured, or stand for those between them.
    """

    def __init__(self, half_life: float = math.inf) -> None:
        self.half_life = half_life
        self._weight = self._squared_weight = 0.0
        self.done = 0.0
        # Of tr Σ, |G|², both squares, the product, the samples up to each step, and the variance.
        self._sums = [0.0] * 7

    def add(self, norms: Norms, steps: int = 1) -> bool:
        """Add the norms of a step and return true; return false if they are infinite or NaN.

        ``steps``: for how many it stands.
        """
        trace, square = norms.trace, norms.squared_gradient
        samples = steps * norms.samples
        products = (trace * trace, square * square, trace * square)
        values = (trace, square, *products, self.done, norms.variance)
        if not all(map(math.isfinite, values)):
            return False
        self.done += samples
        share = -math.expm1(-math.log(2) * samples / self.half_life)
        share = max(share, 1e-12)  # without a half-life, all steps weigh alike
        self._weight += share * (1 - self._weight)
        self._squared_weight += share * share - share * (2 - share) * self._squared_weight
        for at, value in enumerate(values):
            self._sums[at] += share * (value - self._sums[at])
        return True

    @property
    def trace(self) -> float | None:
        """The average of tr Σ; ``None`` before the first step."""
        return self._sums[0] / self._weight if self._weight else None

    @property
    def variance(self) -> float | None:
        """The average of the variance of one gradient; ``None`` before the first step."""
        return self._sums[6] / self._weight if self._weight else None

    @property
    def age(self) -> float:
        """How many samples ago the middle of what is averaged was."""
        return self.done - self._sums[5] / self._weight if self._weight else 0.0

    def estimate(self, gaussian: float = GAUSSIAN90) -> NoiseEstimate | None:
        """Return the noise scale now; ``None`` while nothing is known.

        ``gaussian``: what share its range has.
        """
        count = self._weight * self._weight / self._squared_weight if self._weight else 0.0
        if count <= 2:
            return None
        trace, square, *products, _, _ = (each / self._weight for each in self._sums)
        errors = [max(0.0, p - q) for p, q in zip(products, (trace**2, square**2), strict=False)]
        trace_error, square_error = (math.sqrt(each / (count - 1)) for each in errors)
        together = (products[2] - trace * square) / (count - 1)
        # Student's quantile, to first order (Peiser, 1943).
        z = gaussian * (1 + (gaussian**2 + 1) / (4 * (count - 1)))
        largest = square + z * square_error
        least = max(0.0, trace - z * trace_error) / largest if largest > 0 else 0.0
        a = square**2 - (z * square_error) ** 2
        if not square > max(_KNOWN_ERRORS, z) * square_error or not a > 0:
            return NoiseEstimate(least, None, None) if 0 < least < math.inf else None
        b = square * trace - z * z * together
        root = math.sqrt(max(0.0, b * b - a * (trace**2 - (z * trace_error) ** 2)))
        value = max(0.0, trace / square)
        return NoiseEstimate(max(0.0, (b - root) / a), value, (b + root) / a)
