"""Trains on 960 samples, sleeps around the training and in evaluations, and notes its own clock.

It writes ``clock.json`` into its run directory: seconds from the first step to the last report, of
its longest step, and how many steps it made. ``--checkpoint`` lets it go on after a preemption.
"""

import argparse
import json
import os
import time
from pathlib import Path

import lean_torch  # noqa: F401
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import zeusrun

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--waits-in", type=int, default=0)
arguments = parser.parse_args()

time.sleep(0.4)
torch.set_num_threads(1)
distributed.init_process_group("gloo")
data = TensorDataset(torch.ones(960, 8))
loader = DataLoader(data, batch_size=arguments.batch_size, sampler=DistributedSampler(data))
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
run = zeusrun.current()
state = run.checkpoint_dir / "epoch"
done = int(state.read_text()) if state.exists() else 0
steps, longest_s, began_t, ended_t = 0, 0.0, None, 0.0
for epoch in range(done + 1, arguments.epochs + 1):
    step_t = time.monotonic()
    began_t = began_t or step_t
    for number, (batch,) in enumerate(loader, 1):
        model(batch).sum().backward()
        time.sleep(0.02 / arguments.accumulate)
        if number % arguments.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            longest_s, step_t = max(longest_s, time.monotonic() - step_t), time.monotonic()
    time.sleep(0.2)  # evaluates
    if distributed.get_rank() == 0:
        state.write_text(str(epoch))
        own = {"steps": steps, "longest_s": longest_s, "time_s": time.monotonic() - began_t}
        Path(os.environ["ZEUSRUN_RUN_DIR"], f"clock{epoch}.json").write_text(json.dumps(own))
    run.report(epoch=epoch, accuracy=0.1 * epoch)
    while epoch == arguments.waits_in and done == 0:
        time.sleep(0.02)
        if run.should_stop():
            raise SystemExit(75)
time.sleep(0.4)
