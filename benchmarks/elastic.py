"""How long a change of the ranks takes: growing, shrinking, a killed rank.

``python benchmarks/elastic.py [--cycles 12] [--hidden 2200] [--namespaces]``

One submit trains a model of five million parameters (``--hidden 2200``) over gloo, with SGD and
momentum. Again and again it grows from two ranks to three, shrinks to two, and loses a rank by
SIGKILL. *Pause*: the longest time between two steps of a rank that stays, less a usual step.
*Join*: from the order to the first step with the new rank; its imports of torch are in it. With
``--namespaces``, as root, two network namespaces are two hosts with a rank each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from timing import describe_machine

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from zeusrun.elastic.rank.board import Board  # noqa: E402 - see above

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.hosts import TwoHosts

TRAINS = """
import json, os, sys, time
began = time.monotonic()
import torch, torch._dynamo  # DistributedDataParallel imports the latter
imported = time.monotonic() - began
from torch import distributed, nn
from torch.utils.data import TensorDataset
import zeusrun

torch.set_num_threads(1)
distributed.init_process_group("gloo")
run, hidden = zeusrun.current(), int(sys.argv[1])
layers = [nn.Linear(16, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
network = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Linear(hidden, 10)))
optimizer = torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9)
loader = run.loader(TensorDataset(torch.randn(960, 16)), batch_size=6)
log = open(f"{os.environ['ZEUSRUN_RUN_DIR']}/steps{os.environ['ZEUSRUN_SLOT']}", "a", buffering=1)
print(json.dumps(imported), file=log)
for _ in run.epochs(100000):
    for batch, in loader:
        with run.step():
            optimizer.zero_grad()
            network(batch).square().mean().backward()
            optimizer.step()
            print(json.dumps([time.monotonic(), run.world_size]), file=log)
    run.report(accuracy=0)
"""
JOB = """
name: elastic
script: train.py
args: ["{hidden}"]
launch: {{nproc_per_node: {ranks}}}
run_on: {run_on}
elastic: {{min: 1, max: 4, losses: 1000}}
objective: {{metric: accuracy, target: 1, max_epochs: 100000, missing_metric: continue}}
batch_size: {{candidates: [12], default: 12}}
attempts: 1
"""


class Training:
    """A submit, and what its ranks write of their steps."""

    def __init__(self, folder: Path, hidden: int, hosts: TwoHosts | None = None) -> None:
        (folder / "train.py").write_text(TRAINS)
        run_on, ranks, prefix = "local", 2, []
        if hosts is not None:
            fan_out = f"{' '.join(hosts.ssh_command)} {{host}}"
            run_on, ranks = json.dumps({"hosts": ["a", "b"], "fan_out": fan_out}), 1
            prefix = hosts.a.inside([], cwd=folder)
        (folder / "job.yaml").write_text(JOB.format(hidden=hidden, run_on=run_on, ranks=ranks))
        env = {**os.environ, "ZEUSRUN_HOME": str(folder / "home")}
        command = [*prefix, sys.executable, "-m", "zeusrun", "submit", "job.yaml", "--quiet"]
        self.submit = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL)
        self.run_dir = folder / "home" / "runs" / "elastic" / "elastic-1-1"
        self.wait((self.run_dir / "elastic" / "board").exists)
        self.board = Board(self.run_dir)
        self.wait_for(2)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; the submit must not end."""
        while not condition():
            if self.submit.poll() is not None:
                sys.exit(
                    f"the submit has ended: {(self.run_dir / 'logs/torchrun.log').read_text()}"
                )
            time.sleep(0.002)

    @property
    def members(self) -> tuple[int, ...]:
        """The processes that train."""
        return self.board.read_generation(self.board.newest).members if self.board.newest else ()

    def wait_for(self, ranks: int) -> None:
        """Wait until so many ranks have made three steps together."""
        self.wait(
            lambda: (
                len(self.members) == ranks
                and all(
                    self.board.place(slot).generation == self.board.newest for slot in self.members
                )
            )
        )
        head = self.board.place(self.members[0])
        until = head.steps + 3
        self.wait(lambda: head.steps >= until)

    def steps(self, slot: int) -> list[tuple[float, int]]:
        """Return moment and number of ranks of each step of a process."""
        lines = self.read(slot)[1:]
        return [tuple(json.loads(line)) for line in lines if line.endswith("]")]

    def read(self, slot: int) -> list[str]:
        """Return what a process has written, on any host."""
        return next(self.run_dir.rglob(f"steps{slot}")).read_text().splitlines()

    def pause_s(self, slot: int, since_t: float) -> float:
        """Return the longest time between two steps of a process since then, less a usual one."""
        times = [t for t, _ in self.steps(slot)]
        usual = statistics.median(b - a for a, b in pairwise(times))
        return max(b - a for a, b in pairwise(times) if b > since_t) - usual

    def first_step_s(self, slot: int, ranks: int, since_t: float) -> float:
        """Return the seconds from then to the first step of a process among so many ranks."""
        return next(t for t, size in self.steps(slot) if t > since_t and size == ranks) - since_t


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cycles", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=2200)
    parser.add_argument("--namespaces", action="store_true", help="two hosts on this one, as root")
    given = parser.parse_args()
    found: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        found.setdefault(name, []).append(seconds)

    with contextlib.ExitStack() as stack:
        folder, hosts = Path(stack.enter_context(tempfile.TemporaryDirectory())), None
        if given.namespaces:
            from tests.hosts import TwoHosts, missing  # noqa: PLC0415 - needs pytest

            if reason := missing(sshd=True):
                raise SystemExit(f"--namespaces: {reason}")
            hosts = stack.enter_context(TwoHosts(folder / "hosts", sshd=True))
        training = Training(folder, given.hidden, hosts)
        for _ in range(given.cycles):
            head, begun_t = training.members[0], time.monotonic()
            training.board.order(3, "a user")
            training.wait_for(3)
            note("grow 2 to 3: pause", training.pause_s(head, begun_t))
            newcomer = training.members[-1]
            joined_s = training.first_step_s(newcomer, 3, begun_t)
            note("grow 2 to 3: join", joined_s)
            first = training.read(newcomer)[0]
            note("grow 2 to 3: join, less its imports", joined_s - json.loads(first))
            begun_t = time.monotonic()
            training.board.order(2, "a user")
            training.wait_for(2)
            note("shrink 3 to 2: pause", training.pause_s(head, begun_t))
            training.board.order(3, "a user")
            training.wait_for(3)
            begun_t = time.monotonic()
            os.kill(training.board.place(training.members[1]).pid, signal.SIGKILL)
            training.wait_for(2)
            training.board.order(2, "a user")  # nobody takes the place of the lost one
            note("kill 1 of 3: to the next step", training.first_step_s(head, 2, begun_t))
        training.board.order(0, "a user")
        training.submit.wait()
    print(describe_machine())
    for name, seconds in found.items():
        low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
        print(f"{name:38} {1e3 * middle:8.0f} ms ({1e3 * low:.0f} to {1e3 * high:.0f})")


if __name__ == "__main__":
    main()
