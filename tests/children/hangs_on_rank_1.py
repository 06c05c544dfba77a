"""Trains with DDP; in its second epoch rank 1 waits until the stacks of all ranks are kept."""

import os
import time

import lean_torch  # noqa: F401
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import zeusrun

STACKS = os.path.join(os.environ["ZEUSRUN_CHECKPOINT_DIR"], "..", "logs", "stacks.txt")


def wait_for_the_stacks():
    while not os.access(STACKS, os.F_OK):  # no frame of its own, wherever it is caught
        time.sleep(0.01)


torch.set_num_threads(1)
distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = zeusrun.current()
for epoch in run.epochs(default=3):
    for step in range(20):
        if (epoch, step, run.rank) == (2, 10, 1):
            wait_for_the_stacks()
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.01)
    run.report(epoch=epoch, accuracy=epoch / 3)
