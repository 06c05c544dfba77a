"""What ``Control`` observes, without a training."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zeusrun.worker.adapt import step_history
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


def moments(value=None, trace=None, square=None):
    """Return averages as ``NoiseScale`` has them."""
    parts = (SimpleNamespace(value=each) for each in (trace, square))
    return SimpleNamespace(value=value, trace=next(parts), squared_gradient=next(parts))


def train(policy, noises, *, rule="none", schedule=()):
    """Train an epoch of four steps with each noise scale; return the sizes and the last factor."""
    now = [moments()]
    limits = Limits(64, 512, schedule=schedule)
    control = Control(Run(), Plan((policy,), 1, "epoch", limits, rule, "keep"), lambda: now[0])
    control.prepare(64)
    sizes = []
    for noise in noises:
        now[0] = noise
        control.begin_epoch(control, None, 4096, drop_last=False)
        sizes.append(control.batch_size)
        for _ in range(4):
            control.after_step(control.batch_size, last=False)
        control.end_epoch()
    return sizes, control.rates.factor


@pytest.mark.parametrize(
    ("policy", "noises", "sizes"),
    [
        # 64 times the noise scale over 10, its first value; at most doubled, at most 512.
        ("noise-scale", map(moments, [10, 15, 50, 50, 400, 400]), [64, 96, 192, 320, 512, 512]),
        # Doubled after the epochs of 15, 50 and 60.
        ("double-on-rise", map(moments, [10, 15, 50, 40, 60, 60]), [64, 64, 128, 256, 256, 512]),
        # 25 times trace / (square + trace / size): 975, 1404 and 1798, at most doubled.
        ("norm-test", [moments(1, 100, 1)] * 4, [128, 256, 512, 512]),
    ],
)
def test_the_noise_scale_gives_the_batch_sizes_that_its_policy_predicts(policy, noises, sizes):
    assert train(policy, noises)[0] == sizes


def test_goodput_uses_the_times_of_the_steps(monkeypatch):
    now_s, add_step = [0.0], step_history.StepHistory.add_step

    def add(self, size, *arguments):
        now_s[0] += 0.1 + 0.001 * size
        add_step(self, size, *arguments)

    monkeypatch.setattr(step_history.StepHistory, "add_step", add)
    monkeypatch.setattr(step_history, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    # Beyond 256, the gain is below 5 %: 612 against 609 samples a second.
    assert train("goodput", [moments(1000.0)] * 5)[0] == [64, 128, 256, 256, 256]


def test_adascale_scales_the_learning_rate_by_the_gain_of_the_batch_size():
    noise = moments(100.0, 100.0, 1.0)
    sizes, factor = train("schedule", [noise] * 2, rule="adascale", schedule=((2, 128),))
    assert sizes == [64, 128]
    assert factor == pytest.approx((100 / 64 + 1) / (100 / 128 + 1))
