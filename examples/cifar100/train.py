"""Train a ResNet on CIFAR-100: on one process, or data-parallel under torchrun."""

from __future__ import annotations

import argparse
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch.utils.tensorboard import SummaryWriter


def read_batch(path: Path) -> TensorDataset:
    """Read ``train`` or ``test`` of CIFAR-100's python version."""
    if not path.exists():
        sys.exit(f"{path}: no such file; --data is the unpacked folder cifar-100-python")
    with path.open("rb") as file:
        batch = pickle.load(file, encoding="bytes")  # noqa: S301 - how CIFAR-100 is distributed
    images = torch.tensor(batch[b"data"]).reshape(-1, 3, 32, 32)
    return TensorDataset(images.float() / 127.5 - 1, torch.tensor(batch[b"fine_labels"]))


def make_up(count: int, seed: int) -> TensorDataset:
    """Return images of 100 classes: each class has a colour pattern, somewhere under noise."""
    patterns = torch.randn(100, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    generator = np.random.default_rng(seed)
    labels = torch.tensor(generator.integers(100, size=count))
    images = functional.interpolate(patterns[labels], size=32, mode="bilinear")
    shifts = generator.integers(-4, 5, size=(count, 2)).tolist()
    moved = [image.roll(shift, (1, 2)) for image, shift in zip(images, shifts, strict=True)]
    noise = torch.tensor(generator.normal(0, 0.5, images.shape), dtype=torch.float32)
    return TensorDataset(torch.stack(moved) + noise, labels)


class Block(nn.Module):
    """Two convolutions and a shortcut around them (He et al., 2016)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return features of shape ``(n, after, height / stride, width / stride)``."""
        return functional.relu(self.layers(images) + self.shortcut(images))


def build_resnet(depth: int, width: int) -> nn.Module:
    """Return the paper's network for small images; the depth is ``6 n + 2``."""
    layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for stage in range(3):
        for block in range((depth - 2) // 6):
            layers.append(Block(before, width << stage, 2 if stage and not block else 1))
            before = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 100))


def augment(images: torch.Tensor) -> torch.Tensor:
    """Mirror every second image, and shift all of them by up to four pixels."""
    images = torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, images.flip(3), images)
    top, left = torch.randint(9, (2,)).tolist()
    return functional.pad(images, (4, 4, 4, 4))[:, :, top : top + 32, left : left + 32]


@torch.no_grad()
def test_accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Return the share of the test set that is right."""
    model.eval()
    right = sum(
        (model(images.to(device)).argmax(1) == labels.to(device)).sum().item()
        for images, labels in DataLoader(data, batch_size=500)
    )
    model.train()
    return right / len(data)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="cifar-100-python; default: made-up images")
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=128, help="of each process")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-dir", default="runs/cifar100", help="for TensorBoard")
    args = parser.parse_args()

    distributed, on_gpu = "RANK" in os.environ, torch.cuda.is_available()
    if distributed:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank() if distributed else 0
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if on_gpu else "cpu")
    torch.manual_seed(args.seed)

    if args.data is None:
        training, test = make_up(3000, seed=args.seed), make_up(500, seed=12345)
    else:
        training, test = read_batch(args.data / "train"), read_batch(args.data / "test")
    sampler = DistributedSampler(training, seed=args.seed) if distributed else None
    loader = DataLoader(training, args.batch_size, sampler is None, sampler, drop_last=True)
    model = build_resnet(args.depth, args.width).to(device)
    network = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.SGD(
        network.parameters(), args.lr, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    writer = SummaryWriter(args.log_dir) if rank == 0 else None

    for epoch in range(1, args.epochs + 1):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            scores = network(augment(images).to(device))
            loss = functional.cross_entropy(scores, labels.to(device))
            loss.backward()
            optimizer.step()
        scheduler.step()
        if writer is not None:
            accuracy = test_accuracy(model, test, device)
            writer.add_scalar("test/accuracy", accuracy, epoch)
            print(f"epoch {epoch}: test accuracy {accuracy:.4f}", flush=True)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
