"""Trains for some epochs over a data loader whose samples take time, and reports each epoch."""

from __future__ import annotations

import argparse
import io
import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler

import zeusrun


class Pictures(Dataset):
    """JPEG files in memory, each decoded and made smaller when it is read."""

    def __init__(self, samples: int) -> None:
        from PIL import Image  # noqa: PLC0415 - only where it is used

        self.files = []
        for number in range(samples):
            noise = torch.rand(3, 24, 24, generator=torch.Generator().manual_seed(number))
            pixels = (255 * noise).byte().permute(1, 2, 0).numpy()
            file = io.BytesIO()
            Image.fromarray(pixels).resize((384, 384)).save(file, "JPEG")
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        from PIL import Image  # noqa: PLC0415 - see above

        with Image.open(io.BytesIO(self.files[number])) as image:
            pixels = torch.frombuffer(
                bytearray(image.resize((16, 16)).tobytes()), dtype=torch.uint8
            )
        return pixels.float()[:64] / 255, number % 10


class Numbers(Dataset):
    """Numbers in memory; reading one takes ``seconds``, as from a remote store."""

    def __init__(self, samples: int, seconds: float) -> None:
        self.inputs = torch.rand(samples, 64, generator=torch.Generator().manual_seed(0))
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        if self.seconds:
            time.sleep(self.seconds)
        return self.inputs[number], number % 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", choices=["pictures", "numbers"], default="numbers")
    parser.add_argument("--read-ms", type=float, default=0.0)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--width", type=int, default=64, help="of the hidden layer")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    pictures = options.data == "pictures"
    data = (
        Pictures(options.samples) if pictures else Numbers(options.samples, options.read_ms / 1e3)
    )
    run = zeusrun.current()
    layers = (
        torch.nn.Linear(64, options.width),
        torch.nn.ReLU(),
        torch.nn.Linear(options.width, 10),
    )
    network: torch.nn.Module = torch.nn.Sequential(*layers)
    sampler: RandomSampler | DistributedSampler = RandomSampler(data)
    if run.world_size > 1:
        dist.init_process_group("gloo")
        network, sampler = DistributedDataParallel(network), DistributedSampler(data)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    loader = DataLoader(data, options.batch_size, sampler=sampler, num_workers=options.workers)
    for epoch in run.epochs(default=8):
        total = 0.0
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(network(inputs), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        run.report(epoch=epoch, loss=total / len(loader))


if __name__ == "__main__":
    main()
