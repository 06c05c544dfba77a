"""Squared norms of gradients, on the device that has them. Needs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_PART = 1 << 18  # elements that fit into the second-level cache
_ROW = 1 << 16  # elements; a longer sum of squares in float32 has an error of 1e-4


def squared_norm(flat: torch.Tensor) -> torch.Tensor:
    """Return the squared norm of a tensor of shape ``(n,)`` as one float64, without a copy."""
    if flat.numel() <= _ROW:
        norm: torch.Tensor = torch.linalg.vector_norm(flat, dtype=torch.float32)
        return norm.double().square_()
    whole = flat.numel() // _ROW * _ROW
    norms = torch.linalg.vector_norm(flat[:whole].view(-1, _ROW), dim=1, dtype=torch.float32)
    rest = torch.linalg.vector_norm(flat[whole:], dtype=torch.float32)
    total: torch.Tensor = norms.double().square().sum() + rest.double().square()
    return total


def squared_norm_of_product(flat: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Return the squared norm of a product by elements; both have the shape ``(n,)``.

    On a CPU in parts, because a new tensor of this size would cost more than the product.
    """
    if not flat.is_cpu:
        return squared_norm(flat * factors)
    part = torch.empty(min(_PART, flat.numel()), dtype=flat.dtype)
    total = torch.zeros((), dtype=torch.float64)
    for first, second in zip(torch.split(flat, _PART), torch.split(factors, _PART), strict=True):
        total += squared_norm(torch.mul(first, second, out=part[: first.numel()]))
    return total


def as_number(value: float | torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a number as one float64 on the device of a tensor, without waiting for the device."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(like.device, torch.float64, non_blocking=True).reshape(())
    return like.new_full((), value, dtype=torch.float64)  # torch.tensor would copy, and wait


def add_up(parts: Sequence[Sequence[float | torch.Tensor]], like: torch.Tensor) -> torch.Tensor:
    """Return the sum of each part, in float64 on the device of a tensor, without waiting for it."""
    if like.is_cpu:  # there is nothing to wait for, and numbers are faster than tensors of one
        sums = [sum(map(float, part)) for part in parts]
        return torch.tensor(sums, dtype=torch.float64)
    zero = as_number(0, like)
    return torch.stack([sum((as_number(x, like) for x in part), zero) for part in parts])
