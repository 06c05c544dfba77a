"""A fixed amount of real training, about 10 s a rank: small steps, each with an optimizer."""

import argparse

import torch

import zeusrun

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
steps = parser.parse_args().steps

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
features, labels = torch.randn(64, 64), torch.randint(10, (64,))
for _ in range(steps):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(features), labels).backward()
    optimizer.step()
zeusrun.current().report(epoch=1, accuracy=1.0)
