"""Train one of torchvision's models on ImageNet, data-parallel under torchrun."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torch.utils.tensorboard import SummaryWriter

try:
    from PIL import Image
    from torchvision import datasets, models, transforms
except (ImportError, RuntimeError) as error:  # a build for another torch raises RuntimeError
    sys.exit(f"this example needs a torchvision that fits torch {torch.__version__}: {error}")


class MadeUpImages(Dataset):
    """Pictures of ten classes: each class has a colour pattern, under noise."""

    classes = tuple(range(10))

    def __init__(self, count: int, seed: int, transform: Any) -> None:  # noqa: ANN401
        self.count, self.seed, self.transform = count, seed, transform
        self.patterns = np.random.default_rng(0).integers(64, 192, (10, 8, 8, 3))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return a transformed picture and its class."""
        label = index % 10
        noise = np.random.default_rng((self.seed, index)).integers(-64, 64, (8, 8, 3))
        pixels = (self.patterns[label] + noise).astype(np.uint8)
        return self.transform(Image.fromarray(pixels).resize((256, 256))), label


def load_data(folder: Path | None, size: int) -> tuple[Dataset, Dataset]:
    """Return the training and the validation set."""
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    crop = transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()
    centre = transforms.Resize(size * 8 // 7), transforms.CenterCrop(size)
    training = transforms.Compose([*crop, transforms.ToTensor(), normalize])
    validation = transforms.Compose([*centre, transforms.ToTensor(), normalize])
    if folder is None:
        return MadeUpImages(800, 0, training), MadeUpImages(200, 1, validation)
    for part in ("train", "val"):
        if not (folder / part).is_dir():
            sys.exit(f"{folder / part}: no such folder; --data is the folder with train and val")
    return (
        datasets.ImageFolder(str(folder / "train"), training),
        datasets.ImageFolder(str(folder / "val"), validation),
    )


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader, device: torch.device) -> tuple[float, float]:
    """Return the top-1 and top-5 accuracy in percent, over all ranks."""
    model.eval()
    counts = torch.zeros(3, device=device)
    for images, labels in loader:
        best = model(images.to(device)).topk(5).indices
        right = best == labels.to(device).unsqueeze(1)
        counts += torch.tensor([right[:, 0].sum(), right.sum(), len(labels)], device=device)
    model.train()
    if dist.is_initialized():
        dist.all_reduce(counts)
    return 100 * (counts[0] / counts[2]).item(), 100 * (counts[1] / counts[2]).item()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with train and val; default: made up")
    parser.add_argument("-a", "--arch", default="resnet18")
    parser.add_argument("-b", "--batch-size", type=int, default=64, help="of each process")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("-j", "--workers", type=int, default=4)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--log-dir", default="runs/imagenet", help="for TensorBoard")
    args = parser.parse_args()

    distributed, on_gpu = "RANK" in os.environ, torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if on_gpu else "cpu")
    if distributed:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank() if distributed else 0

    training, validation = load_data(args.data, args.image_size)
    samplers = [
        DistributedSampler(data, shuffle=shuffle) if distributed else None
        for data, shuffle in ((training, True), (validation, False))
    ]
    options = {"num_workers": args.workers, "pin_memory": on_gpu}
    loader = DataLoader(training, args.batch_size, not distributed, samplers[0], **options)
    checks = DataLoader(validation, args.batch_size, sampler=samplers[1], **options)
    model = models.get_model(args.arch, num_classes=len(training.classes)).to(device)
    network = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.SGD(network.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    writer = SummaryWriter(args.log_dir) if rank == 0 else None

    for epoch in range(args.epochs):
        if samplers[0] is not None:
            samplers[0].set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(network(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        top1, top5 = validate(model, checks, device)
        if writer is not None:
            writer.add_scalar("val/acc1", top1, epoch)
            writer.add_scalar("val/acc5", top5, epoch)
            print(f"epoch {epoch}: top-1 {top1:.2f} %, top-5 {top5:.2f} %", flush=True)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
