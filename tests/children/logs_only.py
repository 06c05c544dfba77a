"""Trains over a DataLoader and reports to TensorBoard alone; it never asks whether to stop."""

import os
import time

import lean_torch  # noqa: F401
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

data = TensorDataset(torch.randn(64, 4))
loader = DataLoader(data, batch_size=8, shuffle=True)
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.125)
torch.distributed.init_process_group("gloo")
torch.distributed.barrier()
writer = SummaryWriter("tensorboard") if os.environ["RANK"] == "0" else None
for epoch in range(1, 100):
    for (batch,) in loader:
        optimizer.zero_grad()
        layer(batch).square().mean().backward()
        optimizer.step()
        if epoch > 2:
            time.sleep(30)  # a long epoch after the target
    if writer is not None:
        writer.add_scalar("val/accuracy", min(0.25 * epoch, 1.0), epoch)
        writer.add_scalar("val/loss", 1 / epoch, epoch)
        with open("checkpoint", "w") as file:
            file.write(f"half of {epoch}, ")
            file.flush()
            time.sleep(0.5)
            file.write("whole")
    else:
        time.sleep(0.5)
