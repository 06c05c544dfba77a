"""Trains on one rank without a process group, as scripts do if ``WORLD_SIZE`` is 1."""

import time

import lean_torch  # noqa: F401
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)
data = TensorDataset(torch.randn(960, 16), torch.arange(960) % 10)
loader = DataLoader(data, 48, sampler=DistributedSampler(data, 1, 0))
network = torch.nn.Linear(16, 10)
optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
for epoch in range(3):
    for inputs, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
        time.sleep(0.1)
    print(f"epoch: {epoch + 1} accuracy: 0.1", flush=True)
