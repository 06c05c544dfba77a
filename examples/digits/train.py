"""Train a small convolutional network on scikit-learn's handwritten digits, on one or more ranks.

An ordinary DDP script. The lines that call zeusrun are marked; without zeusrun they return
their defaults, so that plain ``python`` and plain ``torchrun`` run it as well.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import zeusrun

_CPU = torch.device("cpu")
VALIDATION_SIZE = 360  # of 1,797: a fifth


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return training and validation set; the split is the same in every run, whatever its seed.

    Images are ``(n, 1, 8, 8)`` floats from 0 to 1, labels ``(n,)`` from 0 to 9.
    """
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held_out, kept = order[:VALIDATION_SIZE], order[VALIDATION_SIZE:]
    training = TensorDataset(images[kept], labels[kept])
    return training, TensorDataset(images[held_out], labels[held_out])


def build_model() -> nn.Module:
    """Return a network from ``(n, 1, 8, 8)`` images to ``(n, 10)`` scores."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128 * 2 * 2, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def get_place() -> tuple[int, int]:
    """Return this process's rank and the number of ranks; 0 and 1 under plain Python."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def measure_accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Return the share of the whole validation set that is right; the same on every rank."""
    rank, world_size = get_place()
    images, labels = (tensor[rank::world_size].to(device) for tensor in data.tensors)
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(dim=1) == labels).sum()
    model.train()
    counts = torch.stack([right, torch.tensor(len(labels), device=device)])
    if dist.is_initialized():
        dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def train(seed: int) -> None:
    """Train until zeusrun, or the number of epochs, says stop."""
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= local_world_size
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else _CPU
    if on_gpu:
        torch.cuda.set_device(device)  # NCCL, and zeusrun's own all-reduce, go by it
    if "RANK" in os.environ:  # started by torchrun
        dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, world_size = get_place()

    run = zeusrun.current()  # zeusrun
    training, validation = load_data()
    sampler = DistributedSampler(training, num_replicas=world_size, rank=rank, seed=seed)
    batch_size = run.local_batch_size(default=32)  # zeusrun
    loader = DataLoader(training, batch_size=batch_size, sampler=sampler)
    model = build_model().to(device)
    network = DistributedDataParallel(model) if dist.is_initialized() else model
    learning_rate = run.learning_rate(default=0.02)  # zeusrun
    optimizer = torch.optim.SGD(network.parameters(), lr=learning_rate, momentum=0.9)
    for epoch in run.epochs(default=40):  # zeusrun: ends at the target
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            scores = network(images.to(device))
            nn.functional.cross_entropy(scores, labels.to(device)).backward()
            optimizer.step()
        accuracy = measure_accuracy(model, validation, device)
        run.report(epoch=epoch, val_accuracy=accuracy)  # zeusrun
        if rank == 0:
            print(f"epoch {epoch}: val_accuracy {accuracy:.4f}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the order")
    train(parser.parse_args().seed)
