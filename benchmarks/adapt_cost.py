"""What it costs to adapt the batch size: the time of an epoch of ``examples/adaptive``.

On two ranks over gloo, trainings of the same network with the same fixed batch size alternate
inside one process, because whole runs drift too much. All of them run under zeusrun's hooks.
``python benchmarks/adapt_cost.py [--rounds 15]``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from timing import describe_machine, show
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from zeusrun.adapt.rank.agent import Control
from zeusrun.worker.agent import LoaderControl
from zeusrun.worker.hooks.install import install_hooks
from zeusrun.worker.loader import AdaptiveLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "adaptive"))
import train as example

BATCH_SIZE = 64
PASSES = {"digits": 6, "cifar10": 1}  # over the data, for one figure: more than a hundred steps
PLAIN, NEVER, BOUNDED = "DataLoader", f"schedule 1:{BATCH_SIZE}", "noise-scale, min = max"
ADAPT = {
    "policies": ["noise-scale"],
    "interval": 1,
    "unit": "epoch",
    "growth": 2,
    "schedule": [],
    "minimum": BATCH_SIZE,
    "maximum": BATCH_SIZE,
    "per_device_max": None,
    "learning_rate": "sqrt",
}


def build_environment(folder: str) -> dict[str, str]:
    """Return the environment that the launcher would set."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "ZEUSRUN_TRIAL": "bench-1-1",
        "ZEUSRUN_RUN_DIR": folder,
        "ZEUSRUN_SIDECAR": str(Path(folder, "metrics.jsonl")),
        "ZEUSRUN_BATCH_SIZE": str(BATCH_SIZE),
        "ZEUSRUN_PARTS": json.dumps({"watch": {"noise_scale": {"interval": 1}}, "adapt": ADAPT}),
    }


class Trainings:
    """The ways to train on a data set."""

    def __init__(self, hooks: Any, name: str, data: TensorDataset) -> None:  # noqa: ANN401
        environment, bounded = hooks.environment, hooks.parts["adapt"].loader_control
        never = {**ADAPT, "policies": ["schedule"], "schedule": [(1, BATCH_SIZE)]}
        controls = {
            "run.loader": LoaderControl(),
            NEVER: Control(environment, never, lambda: None),
            BOUNDED: bounded,
        }
        self.passes, self.sampler = PASSES[name], DistributedSampler(data)
        loaders = {PLAIN: DataLoader(data, BATCH_SIZE // 2, sampler=self.sampler)}
        for way, control in controls.items():
            loaders[way] = AdaptiveLoader(environment, control, data, BATCH_SIZE // 2)
        self.parts, attach = {}, hooks.parts["watch"].models.attach
        for way, loader in loaders.items():
            hooks.parts["watch"].models.attach = attach if way == BOUNDED else lambda _: None
            network = DistributedDataParallel(example.build_model(name))
            optimizer = torch.optim.SGD(network.parameters(), 1e-4, momentum=0.9)
            self.parts[way] = network, optimizer, loader
        hooks.parts["watch"].models.attach = attach

    def measure(self, way: str, number: int) -> float:
        """Return the milliseconds of a step."""
        network, optimizer, loader = self.parts[way]
        distributed.barrier()
        began_t, steps = time.perf_counter(), 0
        for each in range(self.passes):
            self.sampler.set_epoch(number * self.passes + each)
            for images, labels in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(network(images), labels).backward()
                optimizer.step()
                steps += 1
        distributed.barrier()
        return (time.perf_counter() - began_t) / steps * 1000


def rank(rounds: int) -> None:
    """Train in all ways in rotating order; rank 0 prints what it found."""
    hooks = install_hooks(SimpleNamespace(tick=lambda *_, **__: None))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    for name, data in (
        ("digits", example.split_digits()[0]),
        ("cifar10", example.cifar10.load(None)[0]),
    ):
        trainings = Trainings(hooks, name, data)
        ways = list(trainings.parts)
        times: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(rounds + 1):
            turn = number % len(ways)
            for way in ways[turn:] + ways[:turn]:
                ms = trainings.measure(way, number)
                if number:  # the first round does not count
                    times[way].append(ms)
        noise = hooks.parts["watch"].models.noise
        if hooks.environment.rank == 0 and (noise is None or noise.trace is None):
            raise SystemExit("the noise scale was not measured")
        if hooks.environment.rank == 0:
            plain = times.pop(PLAIN)
            print(f"\n{name}, steps of {statistics.median(plain):.2f} ms with a DataLoader")
            pairs = {way: zip(values, plain, strict=True) for way, values in times.items()}
            ratios = {way: [ms / base for ms, base in pair] for way, pair in pairs.items()}
            show(ratios, f"time of an epoch / with a DataLoader, {rounds} rounds")
    distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo may abort while the interpreter shuts down


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank(options.rounds)
    print(describe_machine(), flush=True)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [*launcher, *meeting, __file__, "--rounds", str(options.rounds)],
            env=build_environment(folder),
            check=True,
        )


if __name__ == "__main__":
    main()
