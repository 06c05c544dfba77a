"""Gradient noise scale and gradient variance, from squared norms of gradients. Pure.

Each of N ranks has the mean gradient g of b samples. With G, the gradient over all data, and Σ, the
covariance of the gradients of single samples:

    E|g|² = |G|² + tr Σ / b      and, for the mean ḡ over the ranks,     E|ḡ|² = |G|² + tr Σ / (bN)

Two equations give |G|² and tr Σ. The noise scale is tr Σ / |G|²: the batch size beyond which more
samples in a step help little (McCandlish et al., 2018, arXiv:1812.06162, appendix A.1).
"""

from __future__ import annotations

import math
from typing import NamedTuple

_MIN_ERRORS = 2.0  # standard errors by which |G|² must exceed 0


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
        """Variance of a rank's gradient, summed over its elements: mean of |g|², minus |ḡ|²."""
        return self.each - self.mean


class Measurement(NamedTuple):
    """What was measured in a step over several ranks.

    Attributes:
        norms: Of the gradients.
        preconditioned: Of the gradients as Adam scales them; ``None`` if unknown.
        variance: Of a rank's gradient, elementwise or per tensor; ``None`` if not measured.
    """

    norms: Norms
    preconditioned: Norms | None = None
    variance: float | None = None


class Average:
    """Exponential moving average, bias-corrected, with its standard error."""

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self._weight = self._squared_weight = 0.0
        self._sum = self._squares = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        kept, alpha = 1 - self._alpha, self._alpha
        self._weight = kept * self._weight + alpha
        self._squared_weight = kept * kept * self._squared_weight + alpha * alpha
        self._sum = kept * self._sum + alpha * value
        self._squares = kept * self._squares + alpha * value * value

    @property
    def value(self) -> float | None:
        """The average; ``None`` before the first value."""
        return self._sum / self._weight if self._weight else None

    @property
    def error(self) -> float:
        """Standard error of the average, if the values are independent; NaN before the second."""
        effective = self._weight * self._weight / self._squared_weight if self._weight else 0.0
        if effective <= 1 + 1e-9:
            return math.nan
        mean = self._sum / self._weight
        variance = max(0.0, self._squares / self._weight - mean * mean)  # ** raises if it overflows
        return math.sqrt(variance / (effective - 1))


class NoiseScale:
    """The noise scale over many steps: numerator and denominator are averaged separately.

    Args:
        alpha: Weight of the newest step.

    Attributes:
        trace: The average of tr Σ.
        squared_gradient: The average of |G|².
    """

    def __init__(self, alpha: float) -> None:
        self.trace = Average(alpha)
        self.squared_gradient = Average(alpha)

    def add(self, norms: Norms) -> bool:
        """Add the norms of a step and return true; return false if they are infinite or NaN."""
        trace, squared_gradient = norms.trace, norms.squared_gradient
        finite = math.isfinite(trace) and math.isfinite(squared_gradient)
        if finite:
            self.trace.add(trace)
            self.squared_gradient.add(squared_gradient)
        return finite

    @property
    def value(self) -> float | None:
        """The noise scale in samples; ``None`` while |G|² is not clearly above 0."""
        numerator, denominator = self.trace.value, self.squared_gradient.value
        if numerator is None or denominator is None:
            return None
        if not denominator > _MIN_ERRORS * self.squared_gradient.error:  # NaN, too
            return None
        return max(0.0, numerator / denominator)
