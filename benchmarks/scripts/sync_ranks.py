"""A rank of ``benchmarks/sync.py``; prints a line of JSON for each measurement, on rank 0."""

from __future__ import annotations

import json
import os
import sys
import time
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from zeusrun.sidecar.plan import RankPlan
from zeusrun.sync.rank.agent import SyncedModels
from zeusrun.sync.section import Sync

WINDOW_S = 2.0  # where ranks need not wait for one another
torch.set_num_threads(1)
distributed.init_process_group("gloo")
GIVEN = json.loads(sys.argv[1])
RANK = distributed.get_rank()
SLEPT_S = GIVEN["sleeps_s"][RANK]  # in each step
INPUTS, WANTED = torch.randn(32, 512), torch.randint(0, 10, (32,))


class Environment:
    """Takes the place of a run's environment: there is no run here."""

    plan = RankPlan()

    @staticmethod
    def record(event: Any) -> None:
        if event.problem:
            raise SystemExit(event.problem)

    record_on_0 = record


class Training:
    """A model that agrees as a section ``sync`` says, and its optimizer."""

    def __init__(self, section: dict[str, Any]) -> None:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        self.model = DistributedDataParallel(layers)
        self.owner = SyncedModels(
            Environment, Sync(**section).model_dump(), SimpleNamespace(training=None)
        )
        self.owner.attach(self.model)
        self.synced = self.owner._models[self.model]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.owner.build(self.optimizer)

    def step(self) -> None:
        self.owner.before_forward(self.model)
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(INPUTS), WANTED).backward()
        time.sleep(SLEPT_S)
        self.optimizer.step()
        self.owner.after_step()


def write(*values: object) -> None:
    if RANK == 0:
        print(json.dumps(values), flush=True)


def train_on(training: Training) -> None:
    """Print the way and the seconds of each step."""
    for _ in range(GIVEN["rounds"]):
        begun = time.perf_counter()
        training.step()
        write(training.synced._way.name, time.perf_counter() - begun)


def measure_rounds(trainings: dict[str, Training]) -> None:
    """Print what each way reaches in each round."""
    for number in range(-1, GIVEN["rounds"]):
        for name, training in trainings.items():
            distributed.barrier()
            if SLEPT_S:
                result = count_steps(training, waits=name != "pair")
            else:
                steps = GIVEN["steps"] if number >= 0 else GIVEN["first"].get(name, 4)
                begun = time.perf_counter()
                for _ in range(steps):
                    training.step()
                result = 1000 * (time.perf_counter() - begun) / steps
            if number >= 0:
                write(name, result)


def count_steps(training: Training, *, waits: bool) -> float:
    """Return the steps a second of all ranks; those that wait for one another do as many."""
    begun = time.perf_counter()
    steps, is_over = torch.zeros(1), False
    while not is_over:
        training.step()
        steps += 1
        over = torch.tensor([float(time.perf_counter() - begun >= WINDOW_S)])
        if waits:
            distributed.all_reduce(over, distributed.ReduceOp.MAX)
        is_over = bool(over)
    took_s = time.perf_counter() - begun
    distributed.all_reduce(steps)
    return steps.item() / took_s


built = {name: Training(section) for name, section in GIVEN["ways"].items()}
if GIVEN["steps"] is None:
    train_on(*built.values())
else:
    measure_rounds(built)
distributed.barrier()
os._exit(0)
