"""DDP over gloo that leaves everything open: left | destroyed | fails (on the last rank)."""

import gzip
import os
import sys
import zipfile

import h5py
import numpy as np
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, how = dist.get_rank(), sys.argv[1]
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
packed = gzip.open(f"{rank}.gz", "wt")
archive = zipfile.ZipFile(f"{rank}.zip", "w")
table = h5py.File(f"{rank}.h5", "w")
losses = np.memmap(f"{rank}.dat", dtype="float32", mode="w+", shape=(10,))


class Saver:
    def __init__(self):
        self.file = open(f"{rank}.txt", "w")

    def __del__(self):
        self.file.write("written by a destructor")
        self.file.close()


saver = Saver()
for step in range(5):
    optimizer.zero_grad()
    loss = (model(torch.full((4, 2), float(rank + step))) ** 2).mean()
    loss.backward()
    optimizer.step()
    losses[step] = loss.item()
    packed.write(f"{step} {loss.item():.4f}\n")
    archive.writestr(str(step), f"{loss.item():.4f}")
    table[str(step)] = loss.item()
dist.barrier()
if how == "destroyed":
    dist.destroy_process_group()
if how == "fails" and rank == dist.get_world_size() - 1:
    raise ValueError("of the last rank")
if how == "fails":
    dist.barrier()
