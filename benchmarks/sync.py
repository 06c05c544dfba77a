"""Milliseconds of a step by the way in which ranks agree, on a calm and on a disturbed network.

``python benchmarks/sync.py [--mbit 200] [--slow 40] [--rounds 5]``; as root, with iproute2

Four network namespaces are four hosts with one rank each, joined by a bridge; each cable has a
limited rate. A model of one megabyte trains over gloo. In each
round, all ways train after one another. *Disturbed*: the cable of rank 0 is slow.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from timing import describe_machine

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
RANKS, NIC = 4, "eth0"
WAYS = {
    "all-reduce": {},
    "bf16": {"compress": "bf16"},
    "fp16": {"compress": "fp16"},
    "powersgd 2": {"compress": "powersgd", "warmup": 2},
    **{
        name: {"topology": name}
        for name in (
            *("auto", "ring", "star", "multi-star", "clique", "tree", "binary-tree"),
            *("binary-tree-star", "multi-binary-tree-star"),
        )
    },
}
TRAINS = """
import json, os, sys, time
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from zeusrun.jobfile.sync_section import Sync
from zeusrun.worker.sync.control import SyncedModel

torch.set_num_threads(1)
distributed.init_process_group("gloo")
steps, rounds, ways = json.loads(sys.argv[1])
rank = distributed.get_rank()
inputs, wanted = torch.randn(32, 512), torch.randint(0, 10, (32,))


def build(section, record=lambda *_: None):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    model = DistributedDataParallel(layers)
    synced = SyncedModel(model, Sync(**section).model_dump(), record)
    distributed._register_comm_hook(model.reducer, synced, SyncedModel.hook)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def step(model, optimizer):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), wanted).backward()
    optimizer.step()


built = {name: build(section) for name, section in ways.items()}
for number in range(-1, rounds):
    for name, parts in built.items():
        distributed.barrier()
        begun = time.perf_counter()
        for _ in range(steps):
            step(*parts)
        took = (time.perf_counter() - begun) / steps
        if rank == 0 and number >= 0:
            print(json.dumps([name, took]), flush=True)
distributed.barrier()
os._exit(0)
"""


def run(*command: str) -> None:
    subprocess.run(command, check=True)


@contextlib.contextmanager
def hosts() -> Iterator[None]:
    """Make the namespaces zs0 to zs3, and zsb with the bridge; they are gone afterwards."""
    names = ["zsb", *(f"zs{rank}" for rank in range(RANKS))]
    remove(names)  # of a benchmark that was killed
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "-n", "zsb", "link", "add", "br0", "type", "bridge")
        run("ip", "-n", "zsb", "link", "set", "br0", "up")
        for rank in range(RANKS):
            own, port = f"zs{rank}", f"p{rank}"
            run(
                *("ip", "-n", own, "link", "add", NIC, "type", "veth"),
                *("peer", "name", port, "netns", "zsb"),
            )
            run("ip", "-n", "zsb", "link", "set", port, "master", "br0", "up")
            run("ip", "-n", own, "addr", "add", f"10.78.0.{rank + 1}/24", "dev", NIC)
            run("ip", "-n", own, "link", "set", NIC, "up")
            run("ip", "-n", own, "link", "set", "lo", "up")
        yield
    finally:
        remove(names)


def remove(names: list[str]) -> None:
    """Remove namespaces, if they are there."""
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def shape(rank: int, mbit: int) -> None:
    """Limit the cable of a host, in both directions."""
    for name, device in ((f"zs{rank}", NIC), ("zsb", f"p{rank}")):
        run(
            *("tc", "-n", name, "qdisc", "replace", "dev", device, "root", "tbf"),
            *("rate", f"{mbit}mbit", "burst", "64kb", "latency", "400ms"),
        )


def start(code: str, *arguments: str) -> list[subprocess.Popen[str]]:
    """Start a rank on each host; only the first one's output is read."""
    ranks = []
    for rank in range(RANKS):
        env = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "LOCAL_RANK": "0",
            "GROUP_RANK": str(rank),
            "GROUP_WORLD_SIZE": str(RANKS),
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "10.78.0.1",
            "MASTER_PORT": "29500",
            "GLOO_SOCKET_IFNAME": NIC,
            "PYTHONPATH": str(ROOT),
        }
        command = ["ip", "netns", "exec", f"zs{rank}", sys.executable, "-c", code, *arguments]
        output = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
        ranks.append(subprocess.Popen(command, env=env, stdout=output, text=True))
    return ranks


def measure(steps: int, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of a step by the way, one for each round."""
    ranks = start(TRAINS, json.dumps([steps, rounds, WAYS]))
    output = ranks[0].communicate()[0]
    if any(rank.wait() for rank in ranks):
        raise SystemExit("a rank failed")
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for name, seconds in map(json.loads, output.splitlines()):
        found[name].append(1000 * seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=int, default=200)
    parser.add_argument("--slow", type=int, default=40, help="of rank 0, disturbed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=16, help="of each way in a round")
    options = parser.parse_args()
    print(f"{describe_machine()}; {RANKS} hosts at {options.mbit} Mbit/s, rank 0 at {options.slow}")
    with hosts():
        tables = []
        for of_head in (options.mbit, options.slow):
            for rank in range(RANKS):
                shape(rank, of_head if rank == 0 else options.mbit)
            begun = time.monotonic()
            tables.append(measure(options.steps, options.rounds))
            print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)
    print(f"{'ms a step':24}{'calm':>24}{'disturbed':>28}")
    for name in WAYS:
        cells = [
            f"{statistics.median(own):.0f} ({min(own):.0f} to {max(own):.0f})"
            for own in (table[name] for table in tables)
        ]
        print(f"{name:24}{cells[0]:>24}{cells[1]:>28}")


if __name__ == "__main__":
    main()
