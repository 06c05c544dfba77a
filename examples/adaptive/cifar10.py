"""CIFAR-10's binary files, and images in the same format that are made up on the spot.

``python examples/adaptive/cifar10.py FOLDER`` writes made-up images as such files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import TensorDataset

PARTS = {"train": [f"data_batch_{n}.bin" for n in range(1, 6)], "test": ["test_batch.bin"]}
MADE_UP = {"train": 8000, "test": 2000}
RECORD = 1 + 3 * 32 * 32  # bytes: the label; red, green and blue, each row by row


def read_records(folder: Path, part: str) -> torch.Tensor:
    """Return the records of a part, ``(n, 3073)`` bytes."""
    records = []
    for path in (folder / name for name in PARTS[part]):
        if not path.exists():
            sys.exit(f"{path}: no such file; --folder is the unpacked cifar-10-batches-bin")
        content = np.fromfile(path, np.uint8)
        if not len(content) or len(content) % RECORD:
            sys.exit(f"{path}: {len(content)} bytes are no whole images of {RECORD}; unpack again")
        records.append(torch.from_numpy(content).reshape(-1, RECORD))
    return torch.cat(records)


def make_records(part: str, count: int, seed: int = 0) -> torch.Tensor:
    """Draw handwritten digits in any colour, size and place over textures; ``(count, 3073)`` bytes.

    The test part has other handwriting than the training part.
    """
    generator = torch.Generator().manual_seed(2 * seed + (part == "test"))
    digits = load_digits()
    shapes = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    test = torch.arange(len(shapes)) % 5 == 0
    own = torch.where(test if part == "test" else ~test)[0]
    chosen = own[torch.randint(len(own), (count,), generator=generator)]

    def uniform(*size: int, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
        return low + (high - low) * torch.rand(count, *size, generator=generator)

    zoom = uniform(low=1.1, high=1.8)  # 32 pixels over the width of the digit
    place = uniform(2, low=-1) * (zoom - 1).unsqueeze(1)
    matrix = torch.diag_embed(torch.stack([zoom, zoom], 1))
    grid = functional.affine_grid(
        torch.cat([matrix, place.unsqueeze(2)], 2), [count, 1, 32, 32], align_corners=False
    )
    mask = functional.grid_sample(shapes[chosen], grid, align_corners=False)
    texture = functional.interpolate(uniform(3, 5, 5, high=0.6), size=32, mode="bilinear")
    colour = uniform(3, 1, 1, low=0.4)
    images = texture * (1 - mask) + colour * mask + 0.1 * (uniform(3, 32, 32) - 0.5)
    pixels = (images.clamp(0, 1) * 255).to(torch.uint8).flatten(1)
    labels = torch.tensor(digits.target)[chosen].to(torch.uint8)
    return torch.cat([labels.unsqueeze(1), pixels], 1)


def load(folder: Path | None) -> tuple[TensorDataset, TensorDataset]:
    """Return training and test set: images ``(n, 3, 32, 32)`` from -1 to 1, and labels.

    Without a folder, the images are made up.
    """
    sets = []
    for part, count in MADE_UP.items():
        records = make_records(part, count) if folder is None else read_records(folder, part)
        images = records[:, 1:].reshape(-1, 3, 32, 32)
        sets.append(TensorDataset(images.float() / 127.5 - 1, records[:, 0].long()))
    return sets[0], sets[1]


def write(folder: Path) -> None:
    """Write the made-up images, divided among files as the real ones are."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, names in PARTS.items():
        for name, records in zip(
            names, make_records(part, MADE_UP[part]).chunk(len(names)), strict=True
        ):
            records.numpy().tofile(folder / name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)
