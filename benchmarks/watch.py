"""What it costs to watch the gradients of a DDP model, on two ranks over gloo.

Blocks of steps of a watched model and of the same model without it alternate inside one process,
because whole runs drift too much. Targets, of the time of a plain step: of 100 ms, 1.03 at interval
1 and 1.01 at interval 8; of 30 ms, 1.06 and 1.02.
``python benchmarks/watch.py [--pairs 60] [--steps 5]``
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

from timing import describe_machine, show

RANKS = 2
CASES = {
    "interval 1": (1, (1.03, 1.06)),
    "interval 8": (8, (1.01, 1.02)),
}
STEPS_MS = (100, 30)


def main() -> int:
    """Run the ranks, and print what rank 0 found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--steps", type=int, default=5, help="in a block")
    arguments = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory() as folder:
        for name, (interval, targets) in CASES.items():
            watch = {"noise_scale": {"interval": interval}}
            for step_ms, target in zip(STEPS_MS, targets, strict=True):
                out = Path(folder, "found.json")
                command = [
                    *(
                        sys.executable,
                        "-m",
                        "torch.distributed.run",
                        "--nproc-per-node",
                        str(RANKS),
                    ),
                    *("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", __file__, "--rank"),
                    *(
                        str(arguments.pairs),
                        str(arguments.steps),
                        str(step_ms),
                        str(out),
                    ),
                ]
                environment = {
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "ZEUSRUN_TRIAL": "bench-1-1",
                    "ZEUSRUN_PARTS": json.dumps({"watch": watch}),
                    "ZEUSRUN_SIDECAR": str(Path(folder, "metrics.jsonl")),
                }
                subprocess.run(command, env=environment, check=True)
                found = json.loads(out.read_text())
                if found["trace"] is None:
                    raise SystemExit(f"{name}: nothing was measured")
                print(f"{name}, steps of {found['plain_ms']:.0f} ms (target {target})", flush=True)
                show({"": found["ratios"]}, "time, watched / plain")
    return 0


def rank(pairs: int, steps: int, step_ms: float, out: str) -> None:
    """Train both models in alternating blocks; rank 0 writes what it found."""
    import torch  # noqa: PLC0415 - after the hooks
    from torch import distributed  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    from zeusrun.worker.hooks.install import install_hooks  # noqa: PLC0415

    hooks = install_hooks(SimpleNamespace(tick=lambda *_, **__: None))
    watch = hooks.parts["watch"]
    hooks.observer.samples = lambda: 32  # there is no data loader
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")

    def build(*, watched: bool):  # noqa: ANN202
        torch.manual_seed(0)
        width = 768 if step_ms > 50 else 384
        layers = [torch.nn.Linear(width, width) for _ in range(5)]
        model = torch.nn.Sequential(
            *(part for layer in layers for part in (layer, torch.nn.Tanh()))
        )
        attach = watch.attach
        if not watched:
            watch.attach = lambda _: None
        ddp = DistributedDataParallel(model)
        watch.attach = attach
        return ddp, torch.optim.SGD(ddp.parameters(), lr=1e-4), width

    def block(ddp, optimizer, data) -> float:  # noqa: ANN001
        distributed.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            ddp(data).square().mean().backward()
            optimizer.step()
        distributed.barrier()
        return (time.perf_counter() - began) / steps * 1000

    models = [build(watched=watched) for watched in (False, True)]
    size, ms = 16, 0.0
    while True:
        data = torch.randn(size, models[0][2])
        ms = min(block(*models[0][:2], data) for _ in range(2))
        known = [None] * RANKS
        distributed.all_gather_object(known, ms)
        if max(known) >= 0.9 * step_ms:
            break
        size = int(size * min(2.0, max(1.1, step_ms / max(known))))
    times = ([], [])
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 else (1, 0):
            times[which].append(block(*models[which][:2], data))
    if distributed.get_rank() == 0:
        ratios = [watched / plain for plain, watched in zip(*times, strict=True)]
        found = {
            "ratios": ratios,
            "plain_ms": statistics.median(times[0]),
            "trace": watch.noise.trace,
        }
        Path(out).write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    if "--rank" in sys.argv:
        at = sys.argv.index("--rank")
        count, length, milliseconds, path = sys.argv[at + 1 :]
        rank(int(count), int(length), float(milliseconds), path)
    else:
        sys.exit(main())
