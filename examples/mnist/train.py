"""Train a small convolutional network on MNIST: on one process, or data-parallel under torchrun."""

from __future__ import annotations

import argparse
import gzip
import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch.utils.tensorboard import SummaryWriter


def read_idx(folder: Path, name: str) -> torch.Tensor:
    """Read one of MNIST's files, compressed or not, into a tensor of bytes."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            shape = np.frombuffer(raw, ">i4", count=raw[3], offset=4)  # byte 3: how many dimensions
            values = np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3])
            return torch.tensor(values.reshape(shape.tolist()))
    sys.exit(f"{folder / name}: no such file, with or without .gz; --data is the folder of MNIST")


def load_data(folder: Path | None) -> tuple[TensorDataset, TensorDataset]:
    """Return the training and the test set; without a folder, scikit-learn's digits."""
    if folder is None:
        digits = load_digits()
        images, labels = torch.tensor(digits.images) / 16, torch.tensor(digits.target)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        parts = [(images[part], labels[part]) for part in (order[360:], order[:360])]
    else:
        parts = [
            (
                read_idx(folder, f"{part}-images-idx3-ubyte") / 255,
                read_idx(folder, f"{part}-labels-idx1-ubyte"),
            )
            for part in ("train", "t10k")
        ]
    training, test = (TensorDataset(x.float().unsqueeze(1), y.long()) for x, y in parts)
    return training, test


def build_model() -> nn.Module:
    """Return a network for images of any size."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


@torch.no_grad()
def test_accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Return the share of the test set that is right."""
    right = sum(
        (model(images.to(device)).argmax(1) == labels.to(device)).sum().item()
        for images, labels in DataLoader(data, batch_size=1000)
    )
    return right / len(data)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of MNIST's four files; default: digits")
    parser.add_argument("--batch-size", type=int, default=64, help="of each process")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-dir", default="runs/mnist", help="for TensorBoard")
    args = parser.parse_args()

    distributed, on_gpu = "RANK" in os.environ, torch.cuda.is_available()
    if distributed:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank() if distributed else 0
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if on_gpu else "cpu")
    torch.manual_seed(args.seed)

    training, test = load_data(args.data)
    sampler = DistributedSampler(training, seed=args.seed) if distributed else None
    loader = DataLoader(training, args.batch_size, shuffle=sampler is None, sampler=sampler)
    model = build_model().to(device)
    network = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.SGD(network.parameters(), lr=args.lr, momentum=0.9)
    writer = SummaryWriter(args.log_dir) if rank == 0 else None

    for epoch in range(1, args.epochs + 1):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        if writer is not None:
            accuracy = test_accuracy(model, test, device)
            writer.add_scalar("test/accuracy", accuracy, epoch)
            print(f"epoch {epoch}: test accuracy {accuracy:.4f}", flush=True)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
