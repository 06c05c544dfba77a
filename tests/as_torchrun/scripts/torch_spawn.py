"""Processes that torch starts, and a loader of which batches are left."""

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(index**2)


def work(number, path):
    torch.save(torch.full((2,), number), f"{path}{number}.pt")


if __name__ == "__main__":
    mp.spawn(work, args=("spawned",), nprocs=1)
    left = iter(DataLoader(Squares(), num_workers=2, multiprocessing_context="fork"))
    print(next(left), next(left))
    mp.spawn(lambda: None, nprocs=1)
