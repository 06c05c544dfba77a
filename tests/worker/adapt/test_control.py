"""What ``Control`` observes, without a training."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zeusrun.worker.adapt.control import Control
from zeusrun.worker.adapt.plan import Plan
from zeusrun.worker.adapt.policies import Limits


class Run(SimpleNamespace):
    rank, world_size, epoch, adaptation_state, ran_out_of_memory = 0, 1, None, None, False

    def record_on_0(self, event): ...


def test_steps_without_a_noise_scale_count_as_the_mean_of_the_others():
    """Otherwise the first epoch, which begins without one, would look like a rise."""
    known = []
    noise = lambda: SimpleNamespace(  # noqa: E731
        value=known.pop(0),
        trace=SimpleNamespace(value=1.0),
        squared_gradient=SimpleNamespace(value=1.0),
    )
    plan = Plan(("double-on-rise",), 1, "epoch", Limits(8, 64), "none", "keep")
    control = Control(Run(), plan, noise)
    control.prepare(8)
    noise_of_a_decision = 5.0
    for values in ([None, None, 3.0, 5.0], [4.0] * 4, [None] * 4):
        known[:] = [noise_of_a_decision] * 3
        control.begin_epoch(control, None, 32, drop_last=False)
        known[:] = values
        for _ in range(4):
            control.after_step(8, last=False)
        control.end_epoch()
    known[:] = [noise_of_a_decision]
    assert control.observe().epoch_sums == pytest.approx((16.0, 16.0))
    assert control.batch_size == 8
