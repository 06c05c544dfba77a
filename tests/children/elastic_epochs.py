"""A script as people write them for torchrun; only ``logs`` is for the tests."""

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
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from zeusrun.worker.hooks.install import installed_hooks

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=48)
parser.add_argument("--share", type=int, help="of each rank; else it divides the batch size")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--pause-s", type=float, default=0.01)
parser.add_argument("--checkpoint", type=Path)
parser.add_argument("--device", default="cpu")
parser.add_argument("--folder", help="for what it writes; by default the run directory")
given = parser.parse_args()
device = given.device

torch.set_num_threads(1)
torch.manual_seed(0)
distributed.init_process_group("gloo")
rank, ranks = distributed.get_rank(), distributed.get_world_size()
generator = torch.Generator().manual_seed(1)
inputs, wanted = torch.randn(960, 16, generator=generator), torch.arange(960) % 10
data = TensorDataset(torch.arange(960), inputs, wanted)
sampler = DistributedSampler(data)
loader = DataLoader(data, given.share or given.batch_size // ranks, sampler=sampler)
evaluation = DataLoader(data, 48, sampler=DistributedSampler(data, shuffle=False))
layers = [
    torch.nn.Linear(16, 32),
    torch.nn.BatchNorm1d(32),
    torch.nn.ReLU(),
    torch.nn.Linear(32, 10),
]
network = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
optimizer = torch.optim.AdamW(network.parameters(), lr=0.001)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.epochs)
first = 0
if given.checkpoint and given.checkpoint.exists():
    saved = torch.load(given.checkpoint)
    network.module.load_state_dict(saved["network"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    first = saved["epoch"]
own = os.environ.get("ZEUSRUN_SLOT", "0")
path = Path(given.folder or os.environ["ZEUSRUN_RUN_DIR"], f"steps{own}.jsonl")
log = path.open("a", buffering=1)


hooks = installed_hooks()
restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def write(**step):
    if hooks is not None and "elastic" in hooks.parts and hooks.parts["elastic"]._member.is_alone:
        return  # it has not joined
    ranks = distributed.get_world_size()
    step |= {"restart": restart, "pid": os.getpid(), "ranks": ranks, "digest": digest()}
    log.write(json.dumps({**step, "rank": distributed.get_rank(), "t": time.monotonic()}) + "\n")


def digest():
    flat = torch.cat([each.detach().flatten().cpu() for each in network.parameters()])
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:12]


for epoch in range(first, given.epochs):
    sampler.set_epoch(epoch)
    network.train()
    for number, (indices, batch, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(batch.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        write(epoch=epoch + 1, step=number, samples=indices.tolist())
        time.sleep(given.pause_s)
    scheduler.step()
    network.eval()
    right = torch.zeros(1, device=device)
    with torch.no_grad():
        for _, batch, labels in evaluation:
            right += (network(batch.to(device)).argmax(1) == labels.to(device)).sum()
    distributed.all_reduce(right)
    if rank == 0:
        print(
            f"epoch: {epoch + 1} accuracy: {right.item() / 1e6:.6f} loss: {loss.item():.3f}",
            flush=True,
        )
        if given.checkpoint:
            saved = {"network": network.module.state_dict(), "epoch": epoch + 1}
            saved |= {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
            torch.save(saved, given.checkpoint.with_suffix(".new"))
            given.checkpoint.with_suffix(".new").rename(given.checkpoint)
print("end", digest(), scheduler.last_epoch)
