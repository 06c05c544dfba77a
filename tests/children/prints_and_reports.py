"""Prints its accuracy in percent, as PyTorch's examples do, and then reports it as a fraction."""

import time

import lean_torch  # noqa: F401
import torch

import zeusrun

run = zeusrun.current()
layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for epoch in run.epochs(default=3):
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    print(f"Test set: Average loss: 0.2, Accuracy: {epoch}/4 ({25 * epoch}%)", flush=True)
    time.sleep(0.3)  # it saves
    run.report(accuracy=0.25 * epoch)
