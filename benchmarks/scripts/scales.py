"""Trains a network for a number of steps; every rank does the same work."""

import argparse
import os

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

import zeusrun

REPORTS = 5
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--width", type=int, required=True)
options = parser.parse_args()

run = zeusrun.current()
torch.set_num_threads(1)  # torchrun sets it for several ranks only
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
distributed.init_process_group("gloo" if device.type == "cpu" else "nccl")
torch.manual_seed(run.rank)
width = options.width
layers = (
    nn.Linear(256, width),
    nn.ReLU(),
    nn.Linear(width, width),
    nn.ReLU(),
    nn.Linear(width, 10),
)
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = run.local_batch_size(default=64)
samples = max(1, options.steps // REPORTS) * batch
data = TensorDataset(torch.randn(samples, 256), torch.randint(10, (samples,)))
loader = DataLoader(data, batch)
for epoch in run.epochs(default=REPORTS):
    for features, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features.to(device)), labels.to(device)).backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    run.report(epoch=epoch, done=epoch / REPORTS)
distributed.destroy_process_group()
