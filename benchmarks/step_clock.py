"""What the step clock adds to an optimizer step: a real SGD step with and without the hooks.

Target: at most 2 µs a step. ``python benchmarks/step_clock.py [--repeats 15]``
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from timing import describe_machine, show
from torch.optim import optimizer as hooks
from zeusrun.worker.step_counter import count_steps

from zeusrun.sidecar.step_clock import StepClock, read_step_clock

STEPS = 20_000


def step_us(optimizer: torch.optim.Optimizer) -> float:
    started = time.perf_counter()
    for _ in range(STEPS):
        optimizer.step()
    return (time.perf_counter() - started) / STEPS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    # No gradient: the step does next to nothing, so the hooks are seen against a quiet ground.
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    figures: dict[str, list[float]] = {"without": [], "with the clock": [], "difference": []}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "rank0"
        count_steps(StepClock(path).tick)
        ours = dict(hooks._global_optimizer_pre_hooks), dict(hooks._global_optimizer_post_hooks)  # noqa: SLF001
        step_us(optimizer)
        for _ in range(repeats):
            hooks._global_optimizer_pre_hooks.clear()  # noqa: SLF001
            hooks._global_optimizer_post_hooks.clear()  # noqa: SLF001
            without = step_us(optimizer)
            hooks._global_optimizer_pre_hooks.update(ours[0])  # noqa: SLF001
            hooks._global_optimizer_post_hooks.update(ours[1])  # noqa: SLF001
            with_clock = step_us(optimizer)
            figures["without"].append(without)
            figures["with the clock"].append(with_clock)
            figures["difference"].append(with_clock - without)
        count = read_step_clock(path)
        if count is None or count.steps != (repeats + 1) * STEPS:
            raise SystemExit("the clock miscounted")
    print(describe_machine(), f"torch {torch.__version__}")
    print(f"{STEPS} steps a run, {repeats} runs each, interleaved")
    show(figures, "µs a step")
    print(f"median difference {statistics.median(figures['difference']):.2f} µs")


if __name__ == "__main__":
    main()
