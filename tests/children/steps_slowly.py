"""Takes an optimizer step about every 10 ms, ``--steps`` of them an epoch, and reaches its target."""

import argparse
import time

import torch

import zeusrun

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
arguments = parser.parse_args()

weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
run = zeusrun.current()
for epoch in run.epochs(default=3):
    for _ in range(arguments.steps):
        weight.grad = torch.ones(1)
        optimizer.step()
        time.sleep(0.01)
    run.report(epoch=epoch, accuracy=0.3 * epoch)
