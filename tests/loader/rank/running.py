"""Runs scripts with real loaders of torch in a rank, and shows what they printed and recorded."""

from __future__ import annotations

import re

from zeusrun.sidecar.events import LoaderWorkers

PREAMBLE = """
import functools, os, signal, sys, time, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

class Data(Dataset):
    '''Numbers; reading takes some time, and ``read`` may do more.'''
    def __init__(self, samples=160, seconds=0.002, read=lambda n: None):
        self.samples, self.seconds, self.read, self.epoch = samples, seconds, read, 0
    def __len__(self): return self.samples
    def __getitem__(self, n):
        time.sleep(self.seconds)
        self.read(n)
        return n + 10_000 * self.epoch

layer = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(layer.parameters(), 0.25)
torch.manual_seed(3)

def train(loader, passes=8, before=lambda n: None):
    '''Train, and print the workers and the samples of each pass, and a number drawn after it.'''
    for epoch in range(passes):
        before(epoch)
        seen = []
        for batch in loader() if callable(loader) else loader:
            optimizer.zero_grad()
            layer(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            seen += batch.tolist()
        now = loader if not callable(loader) else None
        if now is not None: print("pass", now.num_workers, now.persistent_workers, flush=True)
        print("seen", *seen, "then", torch.rand(()).item(), flush=True)

"""
TUNE = {
    "workers": "tune",
    "max_workers": 4,
    "from_zero": False,
    "start": None,
    "measured": [],
    "never": [],
}
FOUR, FOUR_THAT_STAY = ([4, stays, 0.9, "1 of 4"] for stays in (False, True))


class Run:
    """What a script has printed and recorded."""

    def __init__(self, rank, log):
        self.log = log
        self.passes = [int(n) for n in re.findall(r"^pass (\d+)", log, re.MULTILINE)]
        self.stays = re.findall(r"^pass \d+ (\w+)", log, re.MULTILINE)
        self.seen = re.findall(r"^seen (.*)$", log, re.MULTILINE)
        self.events = [each for each in rank.events if isinstance(each, LoaderWorkers)]
        self.problems = [each.problem for each in self.events if each.problem]
        self.measured = {each.workers for each in self.events if each.step_s is not None}
        self.waits_s = rank.steps.waits_s


DIES = """
data = Data(200, 0.002)
def read(n):
    info = get_worker_info()
    if n == 150 and info and info.num_workers > {more}:
        os.kill(os.getpid(), signal.{signal})
data.read = read
train(DataLoader(data, 4, shuffle=True, num_workers={own}{also}), passes=4)
"""
