"""Trains two ranks with DDP and a loader whose batch size adapts; a rank crashes if told to."""

import os
import sys
import time

import lean_torch  # noqa: F401
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import zeusrun

torch.set_num_threads(1)
torch.manual_seed(0)
distributed.init_process_group("gloo")
run = zeusrun.current()
inputs = torch.randn(256, 8)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
loader = run.loader(data, batch_size=8)
model = torch.nn.Linear(8, 1)
network = DistributedDataParallel(model)
optimizer = torch.optim.SGD(network.parameters(), lr=run.learning_rate(default=0.01))
saved, done = run.checkpoint_dir / "last.pt", 0
if saved.exists():
    state = torch.load(saved)
    model.load_state_dict(state["model"])
    done = state["epoch"]
for epoch in run.epochs(default=10, done=done):
    for batch, wanted in loader:
        optimizer.zero_grad()
        (network(batch) - wanted).square().mean().backward()
        optimizer.step()
    if "--crash" in sys.argv and epoch == 4 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise RuntimeError("a crash after the batch size has changed")
    if "--slow" in sys.argv:
        time.sleep(0.5)
    if run.rank == 0:
        torch.save({"model": model.state_dict(), "epoch": epoch}, saved)
    run.report(epoch=epoch, accuracy=epoch / 100)
