"""Trains with ranks that come and go at any step; writes what each rank did in each step."""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import lean_torch  # noqa: F401
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import zeusrun
from zeusrun.worker.hooks.install import installed_hooks

parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=32)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--pause-s", type=float, default=0.01)
parser.add_argument(
    "--accumulates", action="store_true", help="and a norm, another optimizer, a loader worker"
)
parser.add_argument("--evaluates", action="store_true", help="with collectives, after an epoch")
parser.add_argument("--reports-s", type=float, default=0.0, help="what that takes rank 0")
parser.add_argument("--device", default="cpu")
parser.add_argument("--fails-in", type=int, help="epoch in which rank 1 raises an exception")
parser.add_argument("--folder", help="for what it writes; by default the run directory")
given = parser.parse_args()
device = given.device

torch.set_num_threads(1)
torch.manual_seed(0)
distributed.init_process_group("gloo")
run = zeusrun.current()
hidden, samples = given.hidden, 960
generator = torch.Generator().manual_seed(1)
inputs, wanted = torch.randn(samples, 16, generator=generator), torch.arange(samples) % 10
layers = [torch.nn.Linear(16, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, hidden)]
if given.accumulates:
    layers.append(torch.nn.LayerNorm(hidden))
model = torch.nn.Sequential(*layers, torch.nn.Linear(hidden, 10)).to(device)
network = DistributedDataParallel(model)
if given.accumulates:
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.001)
else:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
rates = []
optimizer.register_step_pre_hook(lambda of, *_: rates.append(of.param_groups[0]["lr"]))
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
data = TensorDataset(torch.arange(samples), inputs, wanted)
loader = run.loader(data, batch_size=24, num_workers=int(given.accumulates))
own = os.environ.get("ZEUSRUN_SLOT", "0")
path = Path(given.folder or os.environ["ZEUSRUN_RUN_DIR"], f"steps{own}.jsonl")
log = path.open("a", buffering=1)
digests = given.hidden < 1000


def digest():
    moments = [each for state in optimizer.state.values() for each in state.values()]
    tensors = [*network.parameters(), *filter(torch.is_tensor, moments)]
    flat = torch.cat([each.detach().flatten().cpu().float() for each in tensors])
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:12]


seen = []
for _ in run.epochs(given.epochs):
    for indices, batch, labels in loader:
        is_made = False
        with run.step():
            if not seen:
                optimizer.zero_grad()
            with loader.sync(network):
                loss = (
                    torch.nn.functional.cross_entropy(network(batch.to(device)), labels.to(device))
                    * loader.weight
                )
                loss.backward()
            seen += indices.tolist()
            if loader.is_step:
                optimizer.step()
                epoch = run._environment.epoch  # the script's own is that in which it has joined
                step = {"epoch": epoch, "rank": run.rank, "ranks": run.world_size, "samples": seen}
                done = installed_hooks().parts["elastic"]._member._place.steps  # before this one
                step |= {"pid": os.getpid(), "t": time.monotonic(), "step": done}
                step |= {"digest": digest() if digests else "", "rate": rates[-1]}
                log.write(json.dumps(step) + "\n")
                time.sleep(given.pause_s)
            if given.fails_in == run._environment.epoch and run.rank == 1:
                raise ValueError("rank 1 fails")
            is_made = True
        if loader.is_step or not is_made:
            seen = []
    scheduler.step()
    if given.evaluates:
        path.with_name("evaluates").touch()
        for _ in range(100):
            time.sleep(0.01)
            distributed.all_reduce(torch.ones(1))
    time.sleep(given.reports_s if run.rank == 0 else 0)
    run.report(accuracy=run._environment.epoch / 1000)
print("end", digest(), scheduler.last_epoch)
