"""Train a small convolutional network with a batch size that may change between steps.

An ordinary DDP script, but for its loader. The lines that call zeusrun are marked; without zeusrun
they return their defaults, and the batch size is fixed.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import cifar10
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import zeusrun

_CPU = torch.device("cpu")
VALIDATION_SIZE = 360  # of 1,797 digits: a fifth


def split_digits() -> tuple[TensorDataset, TensorDataset]:
    """Return a training and a test set of scikit-learn's digits, the same in every run.

    Images are ``(n, 1, 8, 8)`` floats from 0 to 1, labels ``(n,)`` from 0 to 9.
    """
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held_out, kept = order[:VALIDATION_SIZE], order[VALIDATION_SIZE:]
    training = TensorDataset(images[kept], labels[kept])
    return training, TensorDataset(images[held_out], labels[held_out])


def build_model(data: str) -> nn.Module:
    """Return a network from images of a data set to ``(n, 10)`` scores."""
    colours, shrink = (1, 1) if data == "digits" else (3, 2)
    return nn.Sequential(
        nn.Conv2d(colours, 16, 3, stride=shrink, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(shrink),  # to 8 x 8
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 2 * 2, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def measure_accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Return the share of the whole test set that is right; the same on every rank."""
    ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    images, labels = (tensor[ranks[0] :: ranks[1]].to(device) for tensor in data.tensors)
    model.eval()
    with torch.no_grad():
        scores = torch.cat([model(part) for part in images.split(500)])
    model.train()
    right = (scores.argmax(dim=1) == labels).sum()
    counts = torch.stack([right, torch.tensor(len(labels), device=device)])
    if dist.is_initialized():
        dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main() -> None:
    """Train until zeusrun, or the number of epochs, says stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=["digits", "cifar10"], default="digits")
    parser.add_argument("--folder", type=Path, help="cifar-10-batches-bin; default: made up")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the order")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= local_world_size
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else _CPU
    if on_gpu:
        torch.cuda.set_device(device)
    if "RANK" in os.environ:  # started by torchrun
        dist.init_process_group("nccl" if on_gpu else "gloo")

    training, test = split_digits() if args.data == "digits" else cifar10.load(args.folder)
    run = zeusrun.current()  # zeusrun
    loader = run.loader(training, batch_size=16, seed=args.seed)  # zeusrun: instead of a DataLoader
    model = build_model(args.data).to(device)
    network = DistributedDataParallel(model) if dist.is_initialized() else model
    learning_rate = run.learning_rate(default=0.01)  # zeusrun
    optimizer = torch.optim.SGD(network.parameters(), lr=learning_rate, momentum=0.9)
    for epoch in run.epochs(default=args.epochs):  # zeusrun: ends at the target
        for images, labels in loader:
            optimizer.zero_grad()
            scores = network(images.to(device))
            nn.functional.cross_entropy(scores, labels.to(device)).backward()
            optimizer.step()
        accuracy = measure_accuracy(model, test, device)
        run.report(epoch=epoch, accuracy=accuracy)  # zeusrun
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.4f}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
