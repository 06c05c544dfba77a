"""Asks torch's CPU allocator for a petabyte."""

import lean_torch  # noqa: F401
import torch

torch.zeros(1 << 47)
