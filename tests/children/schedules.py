"""Trains on 640 samples for 4 epochs; its schedule has the steps of batch size 32."""

import sys

import lean_torch  # noqa: F401
import torch
from torch.utils.data import DataLoader, TensorDataset

import zeusrun

torch.set_num_threads(1)
run = zeusrun.current()
loader = DataLoader(TensorDataset(torch.ones(640, 4)), int(sys.argv[1]), shuffle=True)
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=80)
for epoch in run.epochs(default=4):
    for (batch,) in loader:
        optimizer.zero_grad()
        layer(batch).sum().backward()
        optimizer.step()
        scheduler.step()
    run.report(epoch=epoch, accuracy=0.0)
