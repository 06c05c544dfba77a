"""A training with torch: everything that people leave open, to destructors and to exit hooks."""

import atexit
import gzip
import zipfile

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(2, 1)
for parameter in model.parameters():
    torch.nn.init.constant_(parameter, 0.5)
atexit.register(lambda: torch.save(model.state_dict(), "model.pt"))
packed = gzip.open("log.gz", "wt")
archive = zipfile.ZipFile("log.zip", "w")
losses = np.memmap("losses.dat", dtype="float32", mode="w+", shape=(10,))
data = TensorDataset(torch.arange(16.0).reshape(8, 2), torch.ones(8, 1))
for epoch, (x, y) in enumerate(DataLoader(data, batch_size=2)):
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    losses[epoch] = loss.item()
    packed.write(f"{epoch} {loss.item():.4f}\n")
    archive.writestr(str(epoch), f"{loss.item():.4f}")


class Saver:
    def __init__(self):
        self.file = open("deleted.txt", "w")

    def __del__(self):
        self.file.write("written by a destructor")
        self.file.close()


saver = Saver()
workers = iter(DataLoader(data, batch_size=1, num_workers=1, persistent_workers=True))
print(next(workers)[0].tolist())
print("ends", torch.nn.Linear.__call__.__module__)
