"""Trains over a loader without an end, with the batch size of its option, and evaluates by steps.

An evaluation follows every 10 steps. The accuracy is that of its samples, whatever the batch size:
it is 0.5 after 960 samples. With --print it is printed, else TensorBoard gets it.
"""

import argparse
import time

import lean_torch  # noqa: F401
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from torch.utils.tensorboard import SummaryWriter

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("--print", action="store_true")
options = parser.parse_args()
size = options.batch_size
torch.set_num_threads(1)
data = TensorDataset(torch.randn(400, 4))
sampler = RandomSampler(data, replacement=True, num_samples=10**9)
batches = iter(DataLoader(data, batch_size=size, sampler=sampler))
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
writer = None if options.print else SummaryWriter("tensorboard")
for step in range(1, 10_000):
    (batch,) = next(batches)
    optimizer.zero_grad()
    layer(batch).square().mean().backward()
    optimizer.step()
    if step % 10 == 0:
        time.sleep(0.06)
        if writer is None:
            print(f"accuracy: {step * size / 1920}")
        else:
            writer.add_scalar("accuracy", step * size / 1920, step)
