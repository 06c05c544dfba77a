"""Plays five good games with an untrained model, then trains without a data loader.

``plays_before_training.py HOW STEPS``: HOW is ``print`` or ``tensorboard``. The third game after the
first step is good, too.
"""

import sys
import time

import lean_torch  # noqa: F401
import torch

how, steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
if how == "tensorboard":
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("tensorboard")


def say(accuracy):
    time.sleep(0.06)
    if how == "print":
        print(f"accuracy: {accuracy}")
    else:
        writer.add_scalar("accuracy", accuracy)


for game in range(5):
    say(0.9 + game / 100)
for step in range(steps):
    optimizer.zero_grad()
    layer(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    say(0.2 * (step + 1))
