"""After how many steps a schedule of a fixed length ends is recorded in the first steps."""

from __future__ import annotations

import textwrap

import pytest

from tests.worker.rank import Rank
from zeusrun.sidecar.events import Scheduled

SCRIPT = """
import torch
from torch.optim.lr_scheduler import *
from torch.utils.data import DataLoader, TensorDataset

layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), 0.25)
loader = DataLoader(TensorDataset(torch.randn(100, 4)), 10, shuffle=True)
every, in_epoch = 1, False
{scheduler}
number = 0
for epoch in range(2):
    for (batch,) in loader:
        layer(batch).sum().backward()
        number += 1
        if number % every: continue
        optimizer.step()
        optimizer.zero_grad()
        if not in_epoch: scheduler.step()
    if in_epoch: scheduler.step()
"""


@pytest.mark.parametrize(
    ("scheduler", "found"),
    [
        ("scheduler = CosineAnnealingLR(optimizer, T_max=400)", [("CosineAnnealingLR", 400, 10)]),
        (
            "scheduler = OneCycleLR(optimizer, 0.5, epochs=4, steps_per_epoch=25)",
            [("OneCycleLR", 100, 10)],
        ),
        ("scheduler = PolynomialLR(optimizer, total_iters=30)", [("PolynomialLR", 30, 10)]),
        (
            """
            warm = LinearLR(optimizer, total_iters=5)
            parts = [warm, CosineAnnealingLR(optimizer, 45)]
            scheduler = SequentialLR(optimizer, parts, [5])
            """,
            [("SequentialLR", 50, 10)],
        ),
        (
            """
            every = 2
            scheduler = CosineAnnealingLR(optimizer, T_max=40)
            """,
            [("CosineAnnealingLR", 40, 5)],
        ),
        (
            """
            import functools
            rate = functools.partial(lambda step, num_training_steps: 1.0, num_training_steps=60)
            scheduler = LambdaLR(optimizer, rate)
            """,
            [("LambdaLR", 60, 10)],
        ),
        (
            """
            class Twice(CosineAnnealingLR):  # as that of accelerate on two ranks
                def step(self):
                    super().step()
                    super().step()

            scheduler = Twice(optimizer, T_max=80)
            """,
            [],  # of a class that nobody knows
        ),
        (
            """
            scheduler = CosineAnnealingLR(optimizer, T_max=80)
            once = scheduler.step
            scheduler.step = lambda: (once(), once())
            """,
            [("CosineAnnealingLR", 40, 10)],
        ),
        (
            """
            in_epoch = True
            scheduler = CosineAnnealingLR(optimizer, T_max=2)
            """,
            [],
        ),
        ("scheduler = StepLR(optimizer, 30)", []),
        ("scheduler = LinearLR(optimizer, total_iters=5)", []),  # a warm-up
        ("scheduler = CosineAnnealingWarmRestarts(optimizer, 10)", []),
        ("scheduler = LambdaLR(optimizer, lambda step: 1.0)", []),
        (
            """
            loader = DataLoader(torch.utils.data.IterableDataset.__new__(
                type("Stream", (torch.utils.data.IterableDataset,), {
                    "__iter__": lambda self: iter([(torch.randn(4),)] * 100)})), 10)
            scheduler = CosineAnnealingLR(optimizer, T_max=400)
            """,
            [],
        ),
    ],
)
def test_a_schedule_of_a_fixed_length_is_recorded(tmp_path, scheduler, found):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace("{scheduler}", textwrap.dedent(scheduler)))
    rank = Rank(tmp_path / "run")
    code, log = rank.run_forked(path)
    assert code == 0, log
    events = [event for event in rank.events if isinstance(event, Scheduled)]
    assert [(e.scheduler, e.steps, e.steps_per_epoch) for e in events] == found
