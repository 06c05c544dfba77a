"""Trains two ranks with DDP and data loader workers, and saves what each has done.

With ``--handler`` the ranks named have a SIGTERM handler of their own, which takes a while on rank
0, saves and exits with 143; without, ``run.epochs`` ends after the epoch in which it is told to.
"""

import argparse
import json
import os
import signal
import sys
import time

import lean_torch  # noqa: F401
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import zeusrun

parser = argparse.ArgumentParser()
parser.add_argument("--handler", type=int, nargs="*", default=[])
arguments = parser.parse_args()

torch.set_num_threads(1)
distributed.init_process_group("gloo")
run = zeusrun.current()
saved = run.checkpoint_dir / f"rank{run.rank}.json"


class Slow(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(0.05)
        return torch.ones(8)


def save(epochs):
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    saved.write_text(json.dumps({"epochs": epochs, "life": life, "steps": steps}))


def save_and_exit(*_):
    if run.rank == 0:
        time.sleep(2.0)
    save(epochs)
    sys.exit(143)


data = Slow()
loader = DataLoader(
    data, batch_size=2, sampler=DistributedSampler(data), num_workers=1, persistent_workers=True
)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
epochs = steps = 0
if run.rank in arguments.handler:
    signal.signal(signal.SIGTERM, save_and_exit)
for epoch in range(1, 100) if arguments.handler else run.epochs(default=100):
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        steps += 1
    epochs = epoch
    run.report(epoch=epoch, accuracy=0.01)
save(epochs)
