"""What the hooks in a rank cost: in steps of about 10 ms, in an empty step, and at start-up.

Blocks of steps with and without the hooks alternate inside one process, because whole runs drift
too much. Targets: steps per second at least 0.99 of those without, at most 50 ms at start-up.
``python benchmarks/hooks.py [--blocks 60] [--step-ms 10]``
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from timing import describe_machine, show
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, TensorDataset, dataloader

EMPTY_STEPS = 20_000
_LOADER_METHODS = ("__init__", "_reset", "_next_index", "__next__")


class Switch:
    """Installs the hooks, and takes them out and puts them back between blocks."""

    def __init__(self) -> None:
        self._base = dataloader._BaseDataLoaderIter  # noqa: SLF001
        self._plain = {name: getattr(self._base, name) for name in _LOADER_METHODS}
        started = time.perf_counter()
        from zeusrun.sidecar.step_clock import StepClock  # noqa: PLC0415 - it is timed
        from zeusrun.worker.environment import StopPoll  # noqa: PLC0415
        from zeusrun.worker.hooks.install import install_hooks  # noqa: PLC0415

        path = Path(os.environ["ZEUSRUN_RUN_DIR"]) / "rank0"
        self.hooks = install_hooks(StepClock(path))
        self.startup_ms = (time.perf_counter() - started) * 1000
        self.poll = StopPoll(self.hooks.environment)
        self._hooked = {name: getattr(self._base, name) for name in _LOADER_METHODS}
        self._step_hooks = (
            torch_optimizer._global_optimizer_pre_hooks,  # noqa: SLF001
            torch_optimizer._global_optimizer_post_hooks,  # noqa: SLF001
        )
        self._ours = [dict(hooks) for hooks in self._step_hooks]

    @contextmanager
    def off(self):  # noqa: ANN201
        """Train without the hooks."""
        for name, method in self._plain.items():
            setattr(self._base, name, method)
        for hooks in self._step_hooks:
            hooks.clear()
        yield
        for name, method in self._hooked.items():
            setattr(self._base, name, method)
        for hooks, ours in zip(self._step_hooks, self._ours, strict=True):
            hooks.update(ours)


class Training:
    """Steps of a chosen length over a DataLoader."""

    def __init__(self, step_ms: float) -> None:
        data = TensorDataset(torch.randn(4096, 256), torch.randint(0, 10, (4096,)))
        self.loader = DataLoader(data, 32, shuffle=True)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)
        )
        self.optimizer = torch.optim.SGD(self.layers.parameters(), lr=0.01)
        self.repeats = 1
        while self.steps_per_s(20) > 1000 / step_ms:
            self.repeats += max(1, self.repeats // 4)

    def steps_per_s(self, steps: int, switch: Switch | None = None) -> float:
        """Train one block; with the hooks, do what those of Lightning or transformers do too."""
        batches = iter(self.loader)
        started = time.perf_counter()
        for _ in range(steps):
            x, y = next(batches)
            self.optimizer.zero_grad()
            for _ in range(self.repeats):
                loss = torch.nn.functional.cross_entropy(self.layers(x), y)
                loss.backward()
            self.optimizer.step()
            if switch is not None:
                switch.poll.after_step()
                switch.hooks.reporter.log("tensorboard", {"train/loss": 1.0, "train/lr": 0.01})
        return steps / (time.perf_counter() - started)


def batch_us(switch: Switch | None = None) -> float:
    """Return what a batch takes of a loader that has nothing to do; with ``switch``, as one fed."""
    data: Any = range(2 * EMPTY_STEPS)
    batches = iter(DataLoader(data, batch_size=2, collate_fn=lambda samples: samples))
    if switch is not None:
        batches._zeusrun.feed.trains = True  # noqa: SLF001 - what a step of it would set
    started = time.perf_counter()
    for _ in batches:
        pass
    return (time.perf_counter() - started) / EMPTY_STEPS * 1e6


def empty_step_us(optimizer: torch.optim.Optimizer) -> float:
    started = time.perf_counter()
    for _ in range(EMPTY_STEPS):
        optimizer.step()
    return (time.perf_counter() - started) / EMPTY_STEPS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--step-ms", type=float, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    training = Training(options.step_ms)
    with tempfile.TemporaryDirectory() as folder:
        sidecar = str(Path(folder) / "metrics.jsonl")
        os.environ.update(ZEUSRUN_TRIAL="job-1-1", ZEUSRUN_RUN_DIR=folder, ZEUSRUN_SIDECAR=sidecar)
        switch = Switch()
        figures: dict[str, list[float]] = {"without": [], "with all hooks": [], "ratio": []}
        for block in range(options.blocks):
            pair = {}
            for hooked in (True, False) if block % 2 else (False, True):
                if hooked:
                    pair[True] = training.steps_per_s(options.steps, switch)
                else:
                    with switch.off():
                        pair[False] = training.steps_per_s(options.steps)
            figures["without"].append(pair[False])
            figures["with all hooks"].append(pair[True])
            figures["ratio"].append(pair[True] / pair[False])
        bare = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        empty: dict[str, list[float]] = {"without": [], "with the hooks": []}
        fed: dict[str, list[float]] = {"without": [], "with the hooks": []}
        for _ in range(15):
            with switch.off():
                empty["without"].append(empty_step_us(bare))
                fed["without"].append(batch_us())
            empty["with the hooks"].append(empty_step_us(bare))
            fed["with the hooks"].append(batch_us(switch))
        lines = len(Path(sidecar).read_text().splitlines())
    print(describe_machine(), f"torch {torch.__version__}, Python {sys.version.split()[0]}")
    print(f"{options.blocks} blocks of {options.steps} steps each, alternating")
    show(figures, "steps/s (and ratio)")
    print(f"median ratio {statistics.median(figures['ratio']):.4f}; {lines} lines in the sidecar")
    print(f"{EMPTY_STEPS} empty steps, 15 runs each, alternating")
    show(empty, "µs a step")
    print(f"{EMPTY_STEPS} batches of a loader without work, 15 passes each, alternating")
    show(fed, "µs a batch")
    print(f"import and installation: {switch.startup_ms:.1f} ms")


if __name__ == "__main__":
    main()
