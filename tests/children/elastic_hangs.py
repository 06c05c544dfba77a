"""Trains with ranks of which one hangs once, at a place that a test names; the others wait for it."""

import argparse
import contextlib
import os
import time

import lean_torch  # noqa: F401
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import zeusrun

parser = argparse.ArgumentParser()
parser.add_argument("--at", help="where the process with number 1 hangs in its tenth step")
parser.add_argument("--norm", action="store_true", help="the model has buffers")
given = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
distributed.init_process_group("gloo")
run = zeusrun.current()
norm = [torch.nn.BatchNorm1d(16)] if given.norm else []
network = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 16), *norm))
optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
loader = run.loader(TensorDataset(torch.randn(480, 16)), batch_size=24)
steps = 0


def hang(at):
    """Sleep or compute in the tenth step of the second process, unless all have started again."""
    if run._environment.slot != 1 or steps != 10 or os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        return
    if given.at == "busy" and at == "between":
        until_t = time.monotonic() + 5
        while time.monotonic() < until_t:
            torch.randn(100, 100).sum()
    elif given.at == at:
        time.sleep(10_000)


for _ in run.epochs(20):
    for (batch,) in loader:
        steps += 1
        with run.step():
            hang("step")
            optimizer.zero_grad()
            with network.no_sync() if given.at == "no_sync" else contextlib.nullcontext():
                network(batch).square().mean().backward()
            hang("no_sync")
            network(batch).square().mean().backward()
            hang("backward")
            optimizer.step()
        hang("between")
        if given.at in {"barrier", "gather"}:
            hang(given.at)
            if given.at == "barrier":
                distributed.barrier()
            else:
                distributed.all_gather([torch.ones(1)] * run.world_size, torch.ones(1))
        time.sleep(0.02)
    network.eval()
    with torch.no_grad():
        network.module(torch.randn(24, 16))
    network.train()
    run.report(accuracy=run._environment.epoch / 1000)
if given.norm:
    print("tracked", int(norm[0].num_batches_tracked), flush=True)
