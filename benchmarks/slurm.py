"""What zeusrun adds to a job of Slurm: from the submit to the first optimizer step.

``python benchmarks/slurm.py [--repeats 9] [--nodes 1 2]``, as root, with Debian's ``slurm-wlm``

A batch script with plain torchrun and ``run_on: slurm`` start the same training, in turn, on a
Slurm of two nodes on this machine. One row counts from the call of sbatch; for zeusrun this is when
Slurm has taken the job. The other counts from the call of ``zeusrun submit``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from timing import describe_machine, interleave, show

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # for tests.slurm

from tests.slurm import SlurmCluster, missing  # noqa: E402 - see above

TRAINS = """
import sys, time, torch
from torch import distributed, nn
distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model(torch.randn(4, 8)).square().mean().backward()
optimizer.step()
if distributed.get_rank() == 0:
    with open(sys.argv[1], "w") as file:
        file.write(str(time.time()))
"""
PLAIN = """#!/bin/bash
#SBATCH --nodes={nodes} --ntasks-per-node=1 --output={folder}/plain.out
head=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
srun --kill-on-bad-exit=1 {torchrun} --nnodes={nodes} --nproc-per-node=1 --rdzv-backend=c10d \\
  --rdzv-endpoint=$head:$((20000 + SLURM_JOB_ID % 20000)) --rdzv-id=$SLURM_JOB_ID \\
  {folder}/train.py {folder}/step
"""


class Bench:
    """Starts trainings in a cluster, and measures when their first step is done."""

    def __init__(self, folder: Path, cluster: SlurmCluster) -> None:
        self.folder, self.cluster = folder, cluster
        self.step = folder / "step"
        self.env = {**os.environ, **cluster.environment, "ZEUSRUN_HOME": str(folder / "home")}
        self.env |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
        (folder / "train.py").write_text(TRAINS)

    def wait(self, since: float) -> float:
        """Return the seconds until the first step; wait until the nodes are idle again."""
        deadline = time.monotonic() + 60
        while not self.step.exists() or not self.step.read_text():
            if time.monotonic() > deadline:
                logs = [*self.folder.glob("home/slurm/*/output.log"), self.folder / "plain.out"]
                raise SystemExit("\n".join(path.read_text() for path in logs if path.exists()))
            time.sleep(0.02)
        seconds = float(self.step.read_text()) - since
        self.step.unlink()
        while not self.cluster.nodes_idle():
            time.sleep(0.1)
        time.sleep(1.0)
        return seconds

    def plain(self, nodes: int) -> float:
        """Start a batch script with torchrun."""
        torchrun = Path(sys.executable).with_name("torchrun")
        text = PLAIN.format(nodes=nodes, folder=self.folder, torchrun=torchrun)
        (self.folder / "plain.sh").write_text(text)
        since = time.time()
        self.cluster.do("sbatch", "--parsable", self.folder / "plain.sh", env=self.env)
        return self.wait(since)

    def zeusrun(self, nodes: int, *, whole: bool) -> float:
        """Start the same by zeusrun; ``whole``: count from its own start."""
        job = {
            "name": f"bench{nodes}",
            "script": "train.py",
            "args": [str(self.step)],
            "run_on": "slurm",
            "launch": {"nnodes": nodes},
            "objective": {"metric": "none", "target": 1.0, "missing_metric": "continue"},
            "batch_size": {"default": 8, "candidates": [8]},
            "attempts": 1,
        }
        path = self.folder / f"job{nodes}.yaml"
        path.write_text(json.dumps(job))
        since = time.time()
        argv = [sys.executable, "-m", "zeusrun", "submit", str(path), "--detach"]
        subprocess.run(argv, env=self.env, check=True, capture_output=True)
        # The files of the submit are written just before sbatch is called.
        newest = max((self.folder / "home" / "slurm").glob("*/script.sh"), key=os.path.getmtime)
        return self.wait(since if whole else newest.stat().st_mtime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    if reason := missing():
        raise SystemExit(reason)
    print(describe_machine())
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        with SlurmCluster(folder / "cluster") as cluster:
            bench = Bench(folder, cluster)
            for nodes in options.nodes:
                runs = {
                    "torchrun in sbatch": partial(bench.plain, nodes),
                    "zeusrun, from sbatch": partial(bench.zeusrun, nodes, whole=False),
                    "zeusrun, from submit": partial(bench.zeusrun, nodes, whole=True),
                }
                print(f"{nodes} node{'s' if nodes > 1 else ''}, one rank on each")
                show(interleave(runs, options.repeats), "seconds to the first step")


if __name__ == "__main__":
    main()
