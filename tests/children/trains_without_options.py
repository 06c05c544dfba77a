"""Trains with sizes of its own: ``DATA [loader]``, with a loader that does not shuffle, or none."""

import sys

import lean_torch  # noqa: F401
import torch
from torch.utils.data import DataLoader, TensorDataset

count = int(sys.argv[1])
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.125)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=100)
data, others = (TensorDataset(torch.randn(n, 4)) for n in (count, 40))
if sys.argv[2:]:
    train, test = DataLoader(data, batch_size=16), DataLoader(others, batch_size=16)
else:
    train, test = [data.tensors] * 9, []
for epoch in range(1, 4):
    for (batch,) in train:
        optimizer.zero_grad()
        layer(batch).square().mean().backward()
        optimizer.step()
    scheduler.step()
    for _ in test:
        pass
    print(f"rate: {optimizer.param_groups[0]['lr']:g}")
    print(f"accuracy: {0.2 * epoch:g}", flush=True)
