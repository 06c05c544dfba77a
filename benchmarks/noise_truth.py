"""How near the measured noise scale is to the truth, and whether it depends on the batch size.

First, gradients whose mean and covariance are known: the gradient of a sample is the sample itself.
What is beyond what can be told is a lower bound. Then one network is trained on scikit-learn's
digits with six batch sizes, and their noise scales are compared where their losses are equal.
``python benchmarks/noise_truth.py [--seeds 10]``
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from timing import describe_machine

DIMENSIONS, SHARE, DATA, EPOCHS = 400, 16, 4800, 2
SCALES = (10, 30, 100, 300, 1000, 3000, 10_000, 100_000)
WAYS = {
    "one rank, 4 micro-batches": (1, "micro_batches"),
    "two ranks": (2, "ranks"),
    "four ranks": (4, "ranks"),
}
SIZES = (16, 32, 64, 128, 256, 512)
LOSSES = (1.5, 1.0, 0.6)


def start(part: str, ranks: int, *arguments: object) -> list:
    """Run a part of this file on ranks; return what rank 0 found."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "found.json")
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", __file__, "--rank", part]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "ZEUSRUN_TRIAL": "bench-1-1",
            "ZEUSRUN_PARTS": json.dumps({"watch": {"noise_scale": {"interval": 1}}}),
            "ZEUSRUN_SIDECAR": str(Path(folder, "metrics.jsonl")),
        }
        subprocess.run([*command, *map(str, arguments), str(out)], env=environment, check=True)
        return json.loads(out.read_text())


def compare_with_truth(seeds: int) -> None:
    """Print a row for each way to measure and each noise scale."""
    print(
        f"\nknown gradients: {DIMENSIONS} dimensions, {SHARE} samples a gradient, {seeds} seeds\n"
    )
    print("| how | true | known | measured / true: median (min to max) | in its range | at least |")
    print("|---|---|---|---|---|---|")
    for name, (ranks, how) in WAYS.items():
        for true, *found in start("known", ranks, how, seeds):
            known = [each for each in found if each[1] is not None]
            ratios = sorted(value / true for _, value, _ in known)
            bounds = sorted(low / true for low, value, _ in found if value is None)
            texts = [
                f"{statistics.median(each):.2f} ({each[0]:.2f} to {each[-1]:.2f})" if each else "-"
                for each in (ratios, bounds)
            ]
            inside = sum(low <= true <= high for low, _, high in known)
            share = f"{inside}/{len(known)}" if known else "-"
            cells = (name, f"{true:,.0f}", f"{len(known)}/{seeds}", texts[0], share, texts[1])
            print(f"| {' | '.join(cells)} |", flush=True)


def compare_sizes(seeds: int) -> None:
    """Print the noise scales of one job at several batch sizes, where their losses are equal."""
    print(f"\ndigits, two ranks, SGD, {seeds} seeds: noise scale where the loss is first below a")
    print("level: median (number of seeds in which it is known), and the truth\n")
    print(f"| batch size | {' | '.join(map(str, LOSSES))} |\n|{'---|' * (len(LOSSES) + 1)}")
    medians: list[list[float]] = [[] for _ in LOSSES]
    for size in SIZES:
        cells = []
        for at, runs in enumerate(zip(*start("digits", 2, size, seeds), strict=True)):
            known = [found[1] for found, _ in runs if found and found[1] is not None]
            middle = statistics.median(known) if known else math.nan
            true = statistics.median(true for _, true in runs)
            cells.append(f"{middle:.0f} ({len(known)}), {true:.0f}")
            if 2 * len(known) > seeds:
                medians[at].append(middle)
        print(f"| {size} | {' | '.join(cells)} |", flush=True)
    factors = [f"{max(each) / min(each):.2f}" if each else "-" for each in medians]
    print(f"| largest / smallest known in most seeds | {' | '.join(factors)} |", flush=True)


def rank(part: str, *arguments: str) -> None:
    """Train on this rank; rank 0 writes what it found."""
    import torch  # noqa: PLC0415 - after the hooks
    from torch import distributed  # noqa: PLC0415

    from zeusrun.worker.hooks.install import install_hooks  # noqa: PLC0415

    hooks = install_hooks(SimpleNamespace(tick=lambda *_, **__: None))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    option, seeds, out = arguments
    if part == "known":
        found = [train_known(hooks, option, scale, int(seeds)) for scale in SCALES]
    else:
        found = [train_digits(hooks, int(option), seed) for seed in range(int(seeds))]
    if distributed.get_rank() == 0:
        Path(out).write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()
    os._exit(0)  # gloo's threads may need the interpreter while it ends, and would abort


def train_known(hooks, how: str, scale: float, seeds: int) -> list:  # noqa: ANN001
    """Return the true noise scale, and the estimate of each seed."""
    import torch  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415
    from torch.utils.data import DataLoader, RandomSampler, TensorDataset  # noqa: PLC0415

    import zeusrun  # noqa: PLC0415

    torch.manual_seed(0)
    gradients = torch.randn(DATA, DIMENSIONS)
    gradients -= gradients.mean(0)
    gradients += scale**-0.5 * torch.tensor([1.0, -1.0]).repeat(DIMENSIONS // 2)  # its mean is 0
    centre = gradients.mean(0)
    true = float((gradients - centre).square().sum(1).mean() / centre.square().sum())
    found = [true]
    for seed in range(seeds):
        torch.manual_seed(100 * seed + torch.distributed.get_rank())
        layer = torch.nn.Linear(DIMENSIONS, 1, bias=False)
        model = DistributedDataParallel(layer) if how == "ranks" else layer
        zeusrun.watch(layer)
        share = DATA // torch.distributed.get_world_size()
        sampler = RandomSampler(gradients, replacement=True, num_samples=share)
        loader = DataLoader(TensorDataset(gradients), SHARE, sampler=sampler)
        optimizer = torch.optim.SGD(layer.parameters(), 0.01)
        parts = 4 if how == "micro_batches" else 1
        for _ in range(EPOCHS):
            for number, (batch,) in enumerate(loader, 1):
                (model(batch).sum(1).mean() / parts).backward()
                if number % parts == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        hooks.parts["watch"].conclude()
        found.append(hooks.parts["watch"].noise.estimate() or (0.0, None, None))
    return found


def train_digits(hooks, size: int, seed: int) -> list:  # noqa: ANN001
    """Return the noise scale and the truth where the loss is first below each level."""
    import torch  # noqa: PLC0415
    from sklearn.datasets import load_digits  # noqa: PLC0415
    from torch.nn.functional import cross_entropy  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset  # noqa: PLC0415

    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    data = TensorDataset(images, labels)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))
    ddp = DistributedDataParallel(model)
    sampler = DistributedSampler(data, seed=seed)
    loader = DataLoader(data, size // 2, sampler=sampler)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.02 * (size / 16) ** 0.5)
    truths: list = []  # epoch and noise scale, by level
    curve: list = []  # the middle of what is averaged, in epochs, and the estimate
    for epoch in range(1, 300):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            cross_entropy(ddp(inputs), targets).backward()
            optimizer.step()
        noise = hooks.parts["watch"].noise
        middle = (noise.done - noise.age) / len(images)  # the newest steps are not measured yet
        curve.append((middle, noise.estimate()))
        with torch.no_grad():
            level = float(cross_entropy(model(images), labels))
        while len(truths) < len(LOSSES) and level < LOSSES[len(truths)]:
            truths.append((epoch, true_noise(model, images, labels)))
        if len(truths) == len(LOSSES) and epoch > truths[-1][0] + 3:
            break
    return [(next((e for at, e in curve if at >= epoch), None), true) for epoch, true in truths]


def true_noise(model, images, labels) -> float:  # noqa: ANN001
    """Return the noise scale from the gradient of each sample."""
    import torch  # noqa: PLC0415
    from torch.func import functional_call, grad, vmap  # noqa: PLC0415

    def loss(parameters, image, label):  # noqa: ANN001, ANN202
        output = functional_call(model, parameters, (image[None],))
        return torch.nn.functional.cross_entropy(output, label[None])

    parameters = {name: each.detach() for name, each in model.named_parameters()}
    each = vmap(grad(loss), (None, 0, 0))(parameters, images, labels)
    rows = torch.cat([part.flatten(1) for part in each.values()], 1)
    mean = rows.mean(0)
    return float((rows - mean).square().sum(1).mean() / mean.square().sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="of known gradients")
    parser.add_argument("--size-seeds", type=int, default=5, help="of the digits")
    options = parser.parse_args()
    print(describe_machine(), flush=True)
    if options.seeds:
        compare_with_truth(options.seeds)
    if options.size_seeds:
        compare_sizes(options.size_seeds)


if __name__ == "__main__":
    if "--rank" in sys.argv:
        rank(*sys.argv[sys.argv.index("--rank") + 1 :])
    else:
        main()
