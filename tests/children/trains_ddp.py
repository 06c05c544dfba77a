"""Trains a few steps with DDP and gloo, and leaves everything to interpreter exit."""

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import zeusrun

torch.set_num_threads(1)
distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = zeusrun.current()
for epoch in run.epochs(default=2):
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    run.report(epoch=epoch, accuracy=0.0)
print("the end")
