"""Asks torch's CPU allocator for a petabyte."""

import torch

torch.zeros(1 << 47)
