"""The power limits of one trial: what is held, who else sets them, and what is let go when."""

from __future__ import annotations

import secrets
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.bandit.scripts import problem
from tests.factories import build_trial
from tests.gpu.test_power_limit import NoGuard
from zeusrun.gpu.power_limit import LimitHolder
from zeusrun.gpu.simulated import SimulatedDevice
from zeusrun.launcher import limits as limits_module
from zeusrun.launcher.limits import LimitControl
from zeusrun.sidecar import StepCount
from zeusrun.trial import Decision, Stage

PROBED_W = 150.0


class Running:
    """A trial on one GPU: 50 steps a second, ten looks a second, joules as its limit allows."""

    def __init__(self, tmp_path, monkeypatch, fixed_w=None):
        self.now_t = 0.0
        uuid = f"GPU-{secrets.token_hex(4)}"  # locks are the machine's
        self.device = SimulatedDevice(lambda: self.now_t, uuid=uuid, demand_w=400.0)
        self.holder = LimitHolder([self.device], tmp_path, NoGuard())
        self.warnings = []
        monkeypatch.setattr(limits_module, "slowest", lambda *_: self.count())
        monkeypatch.setattr(limits_module, "time", SimpleNamespace(monotonic=lambda: self.now_t))
        now = problem(power_limits_w=(100.0, PROBED_W, 300.0), max_power_w=300.0, gpu_count=1)
        submission = SimpleNamespace(
            limits=self.holder,
            gpus=[self.device],
            policy=SimpleNamespace(next_limit_w=lambda *_: PROBED_W),
            spec=SimpleNamespace(power_limit=SimpleNamespace(watts=fixed_w), instrument=True),
        )
        choice = SimpleNamespace(
            runs=(), problem=now, decision=Decision(64, Stage.EXPLORE, "because")
        )
        trial = replace(build_trial(world_size=1), power_limit_w=fixed_w or 300.0)
        self.control = LimitControl(submission, trial, None, choice, self.warnings.append)

    def count(self):
        return StepCount(1 + int(50 * self.now_t), 0.0, self.now_t)

    def energy_j(self, since_t, until_t):
        return 150.0 * (until_t - since_t)

    def train(self, seconds):
        for _ in range(round(seconds * 10)):
            self.now_t += 0.1
            self.control.advance(self.now_t, self.energy_j, wait=False)


@pytest.fixture
def running(tmp_path, monkeypatch):
    running = Running(tmp_path, monkeypatch)
    with running.holder:
        yield running


def test_a_cap_set_during_a_probe_stays_and_the_user_is_told_once(running):
    running.train(4.0)
    assert running.device.power_limit_w() == PROBED_W
    running.device.set_power_limit_w(120.0)
    running.train(30.0)
    running.control.let_go()
    assert running.device.power_limit_w() == 120.0
    assert running.control.report(None).profile == ()
    (warning,) = [text for text in running.warnings if "left alone" in text]
    assert "stays at 120 W" in warning


def test_a_cap_set_under_a_fixed_limit_stays_and_the_user_is_told(tmp_path, monkeypatch):
    running = Running(tmp_path, monkeypatch, fixed_w=200.0)
    with running.holder:
        running.control.begin()
        running.train(1.0)
        running.device.set_power_limit_w(120.0)
        running.control.let_go()
        (warning,) = running.warnings
    assert "stays at 120 W: it is not the 200 W" in warning
    assert running.device.power_limit_w() == 120.0
    assert running.holder.unrestored is None


@pytest.mark.parametrize("at_once", [True, False])
def test_a_probe_that_the_end_of_the_training_cuts_short_is_kept(running, at_once):
    running.train(9.0)
    running.control.wind_down(at_once=at_once)
    assert running.device.power_limit_w() == 300.0
    (point,) = running.control.report(None).profile
    assert point.power_limit_w == PROBED_W


@pytest.mark.parametrize("at_once", [True, False])
def test_a_probe_cut_short_under_another_limit_is_not_kept(running, at_once):
    running.train(9.0)
    running.device.set_power_limit_w(120.0)
    running.control.wind_down(at_once=at_once)
    running.control.let_go()
    assert running.control.report(None).profile == ()
    assert running.device.power_limit_w() == 120.0
