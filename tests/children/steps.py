"""Takes ten optimizer steps an epoch with an optimizer whose step calls ``super().step()``."""

import lean_torch  # noqa: F401
import torch

import zeusrun


class Careful(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


weight = torch.nn.Parameter(torch.zeros(1))
optimizer = Careful([weight], lr=0.1)
run = zeusrun.current()
for epoch in run.epochs(default=2):
    for _ in range(10):
        weight.grad = torch.ones(1)
        optimizer.step()
    run.report(epoch=epoch, accuracy=float("nan"))
