"""Trains with DDP and data loader workers; in its first life rank 1 fails in the second epoch."""

import os

import lean_torch  # noqa: F401
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.set_num_threads(1)
distributed.init_process_group("gloo")
data = TensorDataset(torch.ones(24, 8))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data), num_workers=1)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 0
for epoch in (1, 2):
    if (life, epoch, distributed.get_rank()) == (0, 2, 1):
        raise ValueError("the first life")
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        steps += 1
print(f"life {life}: {steps} steps of {distributed.get_world_size()} ranks")
