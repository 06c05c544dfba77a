"""Squared norms of gradients, on the device that has them. Needs torch."""

from __future__ import annotations

import torch

_ROW = 1 << 16  # elements; a longer sum of squares in float32 has an error of 1e-4


def squared_norm(flat: torch.Tensor) -> torch.Tensor:
    """Return the squared norm of a tensor of shape ``(n,)`` as one float64, without a copy."""
    whole = flat.numel() // _ROW * _ROW
    norms = torch.linalg.vector_norm(flat[:whole].view(-1, _ROW), dim=1, dtype=torch.float32)
    rest = torch.linalg.vector_norm(flat[whole:], dtype=torch.float32)
    total: torch.Tensor = norms.double().square().sum() + rest.double().square()
    return total


def as_number(value: float | torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a number as one float64 on the device of a tensor, without waiting for the device."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(like.device, torch.float64, non_blocking=True).reshape(())
    return like.new_full((), value, dtype=torch.float64)  # torch.tensor would copy, and wait
