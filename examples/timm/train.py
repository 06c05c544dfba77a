"""Train one of timm's models on a folder of images, data-parallel under torchrun."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from torch.utils.tensorboard import SummaryWriter

try:
    import timm
    from PIL import Image
    from timm.data import create_dataset, create_loader, resolve_data_config
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler
    from timm.utils import AverageMeter, accuracy, reduce_tensor
except (ImportError, RuntimeError) as error:  # torchvision's build for another torch raises it
    sys.exit(
        f"this example needs timm, and a torchvision that fits torch {torch.__version__}: {error}"
    )


class MadeUpImages(Dataset):
    """Pictures of ten classes: each class has a colour pattern, under noise."""

    classes = tuple(range(10))
    transform: Any = None  # timm's loader sets it

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed
        self.patterns = np.random.default_rng(0).integers(64, 192, (10, 8, 8, 3))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return a transformed picture and its class."""
        label = index % 10
        noise = np.random.default_rng((self.seed, index)).integers(-64, 64, (8, 8, 3))
        pixels = (self.patterns[label] + noise).astype(np.uint8)
        return self.transform(Image.fromarray(pixels).resize((256, 256))), label


def load_data(folder: Path | None) -> tuple[Dataset, Dataset]:
    """Return the training and the validation set."""
    if folder is None:
        return MadeUpImages(800, 0), MadeUpImages(200, 1)
    for part in ("train", "val"):
        if not (folder / part).is_dir():
            sys.exit(f"{folder / part}: no such folder; --data is the folder with train and val")
    return tuple(create_dataset("", str(folder / part)) for part in ("train", "val"))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with train and val; default: made up")
    parser.add_argument("--model", default="resnet10t")
    parser.add_argument("-b", "--batch-size", type=int, default=64, help="of each process")
    parser.add_argument("--opt", default="adamw")
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("-j", "--workers", type=int, default=4)
    parser.add_argument("--img-size", type=int, default=224)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-dir", default="runs/timm", help="for TensorBoard")
    args = parser.parse_args()

    distributed, on_gpu = "RANK" in os.environ, torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if on_gpu else "cpu")
    if distributed:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
    timm.utils.random_seed(args.seed, rank)

    training, validation = load_data(args.data)
    classes = len(getattr(training, "classes", ())) or len(training.reader.class_to_idx)
    model = timm.create_model(args.model, num_classes=classes).to(device)
    data = resolve_data_config({"img_size": args.img_size}, model=model)
    options = {
        "input_size": data["input_size"],
        "mean": data["mean"],
        "std": data["std"],
        "num_workers": args.workers,
        "persistent_workers": args.workers > 0,
        "distributed": distributed,
        "use_prefetcher": False,
        "pin_memory": on_gpu,
    }
    loader = create_loader(training, batch_size=args.batch_size, is_training=True, **options)
    checks = create_loader(validation, batch_size=args.batch_size, is_training=False, **options)
    network = DistributedDataParallel(model) if distributed else model
    optimizer = create_optimizer_v2(model, args.opt, lr=args.lr, weight_decay=0.05)
    scheduler = CosineLRScheduler(optimizer, t_initial=args.epochs)
    compute_loss = LabelSmoothingCrossEntropy(0.1)
    writer = SummaryWriter(args.log_dir) if rank == 0 else None

    for epoch in range(args.epochs):
        if distributed:
            loader.sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            loss = compute_loss(network(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        scheduler.step(epoch + 1)
        model.eval()
        top1 = AverageMeter()
        with torch.no_grad():
            for images, labels in checks:
                (value,) = accuracy(model(images.to(device)), labels.to(device))
                top1.update(reduce_tensor(value, world_size) if distributed else value, len(labels))
        if writer is not None:
            writer.add_scalar("eval/top1", float(top1.avg), epoch)
            print(f"epoch {epoch}: top-1 {float(top1.avg):.2f} %", flush=True)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
