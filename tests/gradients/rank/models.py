"""The models of the tests of statistics on one rank."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class RMSNorm(nn.Module):
    """As in transformers, with the weight offset of some."""

    def __init__(self, width, offset=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.variance_epsilon, self.offset = 1e-6, offset

    def forward(self, x):
        normal = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight + self.offset) * normal


NORMS = (nn.LayerNorm, nn.RMSNorm, RMSNorm)


class Net(nn.Module):
    def __init__(self, norm=nn.LayerNorm, width=6, uses=1, checkpointed=None):
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 3)
        self.norm, self.uses, self.checkpointed = norm(width), uses, checkpointed

    def forward(self, x):
        x = self.first(x)
        for _ in range(self.uses):
            if self.checkpointed is None:
                x = x + self.norm(x).tanh()
            else:
                x = x + checkpoint(self.norm, x, use_reentrant=self.checkpointed).tanh()
        return self.last(x)


class Wrong(nn.Module):
    """Says that it is what it is not."""

    def __init__(self, width):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), 1e-6

    def forward(self, x):
        return self.weight * x / (1 + x.abs())


Wrong.__name__ = "OtherRMSNorm"


class Raises(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x.flatten(0, 1)).view(*x.shape[:2], 3)
