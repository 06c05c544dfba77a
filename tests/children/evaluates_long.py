"""Takes steps of 10 ms and an evaluation of a second after each epoch."""

import time

import torch

import zeusrun

weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
run = zeusrun.current()
for epoch in run.epochs(default=3):
    for _ in range(20):
        weight.grad = torch.ones(1)
        optimizer.step()
        time.sleep(0.01)
    time.sleep(1.0)
    run.report(epoch=epoch, accuracy=epoch / 3)
