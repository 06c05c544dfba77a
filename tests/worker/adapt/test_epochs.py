"""What ``double-on-rise`` compares: whole epochs of which the noise scale is known."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zeusrun.worker.adapt.control import Control
from zeusrun.worker.adapt.plan import Plan
from zeusrun.worker.adapt.policies import Limits

STEPS = 3


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        ([[1, 1, 1], [1, 1, 2], [2, 1, 1]], [32, 32, 64]),
        ([[None, None, None], [5, 5, 5], [4, 4, 4]], [32, 32, 32]),  # from unknown is no rise
        ([[None, 1, 1], [5, 5, 5], [5, 5, 6]], [32, 32, 32]),
        ([[1, 1, 1], [9, None, 9], [9, 9, 9]], [32, 32, 32]),
    ],
)
def test_only_epochs_whose_noise_scale_is_known_throughout_are_compared(epochs, expected):
    known = [value for values in epochs for value in values]
    average = SimpleNamespace(value=1.0)
    run = SimpleNamespace(rank=0, world_size=1, adaptation_state=None, record_on_0=lambda _: None)

    def noise():
        value = known[min(control.seen_steps, len(known) - 1)]
        return SimpleNamespace(value=value, trace=average, squared_gradient=average)

    plan = Plan(("double-on-rise",), 1, "epoch", Limits(32, 512), "none", "keep")
    control = Control(run, plan, noise)
    control.seen_steps = 0
    control.prepare(32)
    sizes = []
    for epoch in range(1, len(epochs) + 1):
        control.begin_epoch(epoch)
        sizes.append(control.batch_size)
        for _ in range(STEPS):
            control.after_step(control.batch_size, last=False)
            control.seen_steps += 1
        control.end_epoch()
    assert sizes == expected
