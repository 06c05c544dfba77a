"""Gradient noise scale and gradient variance, from squared norms of gradients. Pure.

Each of N ranks has the mean gradient g of b samples. With G, the gradient over all data, and Σ, the
covariance of the gradients of single samples:

    E|g|² = |G|² + tr Σ / b      and, for the mean ḡ over the ranks,     E|ḡ|² = |G|² + tr Σ / (bN)

Two equations give |G|² and tr Σ. The noise scale is tr Σ / |G|²: the batch size beyond which more
samples in a step help little (McCandlish et al., 2018, arXiv:1812.06162, appendix A.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

_CERTAIN = 2.0  # standard errors by which |G|² must exceed 0


class Norms(NamedTuple):
    """Squared norms of one step.

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


class Average:
    """Exponential moving average, bias-corrected, with its standard error."""

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self._weight = self._squared_weight = 0.0
        self._sum = self._squares = 0.0

    def add(self, value: float) -> None:
        """Take in a value."""
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


@dataclass
class NoiseScale:
    """The noise scale over many steps: numerator and denominator are averaged apart.

    Args:
        alpha: Weight of the newest step.
    """

    alpha: float

    def __post_init__(self) -> None:
        self.trace = Average(self.alpha)
        self.squared_gradient = Average(self.alpha)

    def add(self, norms: Norms) -> bool:
        """Take in the norms of a step, unless they are not finite, as after an overflow."""
        trace, squared_gradient = norms.trace, norms.squared_gradient
        finite = math.isfinite(trace) and math.isfinite(squared_gradient)
        if finite:
            self.trace.add(trace)
            self.squared_gradient.add(squared_gradient)
        return finite

    @property
    def value(self) -> float | None:
        """The noise scale in samples; ``None`` while |G|² cannot be told from 0."""
        numerator, denominator = self.trace.value, self.squared_gradient.value
        if numerator is None or denominator is None:
            return None
        if not denominator > _CERTAIN * self.squared_gradient.error:  # NaN, too
            return None
        return max(0.0, numerator / denominator)
