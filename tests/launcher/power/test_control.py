"""The power limits of one trial: what is held, who else sets them, and what is let go when."""

from __future__ import annotations

import secrets
from types import SimpleNamespace

import pytest

from tests.bandit.scripts import problem
from tests.gpu.power_limits.test_holder import NoGuard
from tests.gpu.simulated import SimulatedDevice
from zeusrun.errors import DeviceError
from zeusrun.files.home import limits_directory
from zeusrun.gpu.power_limits.holder import LimitHolder
from zeusrun.gpu.power_limits.original_limits import LimitRecord, write_record
from zeusrun.launcher.power import control as limits_module
from zeusrun.launcher.power.control import LimitControl, held_by, open_limits
from zeusrun.lever import power_lever
from zeusrun.sidecar.step_clock import StepCount
from zeusrun.trial import PowerPoint

PROBED_W = 150.0


class Running:
    """A trial on one GPU: 50 steps a second, ten looks a second, joules as its limit allows."""

    def __init__(self, tmp_path, monkeypatch, fixed_w=None):
        self.now_t = 0.0
        uuid = f"GPU-{secrets.token_hex(4)}"  # locks are the machine's
        self.device = SimulatedDevice(lambda: self.now_t, uuid=uuid, demand_w=400.0)
        self.guard = NoGuard()
        self.home = tmp_path
        self.holder = LimitHolder([self.device], limits_directory(tmp_path), self.start_guard)
        self.warnings = []
        monkeypatch.setattr(limits_module, "time", SimpleNamespace(monotonic=lambda: self.now_t))
        self.fixed_w = fixed_w
        self.control = self.attempt(fixed_w or 300.0)

    def attempt(self, original_w, next_limit_w=lambda _profile: PROBED_W):
        choice = SimpleNamespace(
            trial=SimpleNamespace(trial="job-1-1", global_batch_size=32),
            problem=problem(
                power_limits_w=(100.0, PROBED_W, 300.0), max_power_w=300.0, gpu_count=1
            ),
            runs=(SimpleNamespace(arm=64),),  # of another batch size
            limit_w=original_w,
        )
        return LimitControl(
            self.holder,
            [self.device],
            self.count,
            self.warnings.append,
            choice=choice,
            fixed=power_lever(self.fixed_w),
            next_lever=lambda profile: power_lever(next_limit_w(profile)),
        )

    def start_guard(self, found_w, descriptors):
        return self.guard(found_w, descriptors)

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
    running.control.restore()
    assert running.device.power_limit_w() == 120.0
    assert running.control.report(None).profile == ()
    (warning,) = [text for text in running.warnings if "changes no power limit" in text]
    assert "stays at 120 W" in warning


def test_a_cap_set_under_a_fixed_limit_stays_and_the_user_is_told(tmp_path, monkeypatch):
    running = Running(tmp_path, monkeypatch, fixed_w=200.0)
    with running.holder:
        running.control.begin()
        running.train(1.0)
        running.device.set_power_limit_w(120.0)
        running.control.restore()
        (warning,) = running.warnings
    assert "stays at 120 W: it is not the 200 W" in warning
    assert running.device.power_limit_w() == 120.0
    assert running.holder.unrestored is None


@pytest.mark.parametrize("wait", [True, False])
def test_while_the_training_is_to_wait_no_new_limit_is_tried(running, monkeypatch, wait):
    waits = []
    monkeypatch.setattr(running.control._profiling, "advance", lambda *_, wait: waits.append(wait))
    running.control.advance(1.0, running.energy_j, wait=wait)
    assert waits == [wait]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_probe_that_the_end_of_the_training_cuts_short_is_kept(running, at_once):
    running.train(9.0)
    running.control.wind_down(at_once=at_once)
    assert running.device.power_limit_w() == 300.0
    (point,) = running.control.report(None).profile
    assert point.power_limit_w == PROBED_W


def test_where_no_probe_was_made_the_report_has_the_speed_check_and_no_limit(running):
    checked = PowerPoint(200.0, 50.0, 150.0)
    assert running.control.report(None).profile == ()
    assert running.control.report(checked).profile == (PowerPoint(None, 50.0, 150.0),)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_probe_cut_short_under_another_limit_is_not_kept(running, at_once):
    running.train(9.0)
    running.device.set_power_limit_w(120.0)
    running.control.wind_down(at_once=at_once)
    running.control.restore()
    assert running.control.report(None).profile == ()
    assert running.device.power_limit_w() == 120.0


def test_a_policy_that_chooses_no_limit_has_the_original_one_measured(running):
    running.control = running.attempt(300.0, lambda _profile: None)
    running.train(30.0)
    (point,) = running.control.report(None).profile
    assert point.power_limit_w == 300.0


def test_what_somebody_else_has_set_is_not_told_again_in_the_next_attempt(running):
    running.train(4.0)
    running.device.set_power_limit_w(120.0)
    running.control.restore()
    assert len(running.warnings) == 1
    running.control = running.attempt(120.0, lambda _profile: None)  # none is left to choose from
    running.train(4.0)
    running.control.restore()
    assert len(running.warnings) == 1


def test_what_somebody_else_sets_is_told_though_limits_are_left_alone_already(running):
    running.train(4.0)
    change = running.device.set_power_limit_w

    def fail(_watts):
        raise DeviceError("not now")

    running.device.set_power_limit_w = fail
    running.guard.alive = False
    running.holder._start_guard = lambda *_: fail(0)
    running.train(1.0)
    assert len(running.warnings) == 1
    change(120.0)
    running.holder._start_guard = running.guard
    running.train(10.0)  # it tries again by itself
    first, second = running.warnings
    assert "not now" in first
    assert "stays at 120 W" in second


def test_where_neither_guard_nor_gpu_answers_a_guard_is_started_now_and_then(running):
    running.train(4.0)
    started = []

    def fail(*_):
        started.append(running.now_t)
        raise DeviceError("no guard")

    running.guard.alive = False
    running.holder._start_guard = fail
    running.device.fail("GPU is lost")
    running.train(20.0)
    assert len(started) < 10  # of 200 looks


def test_a_limit_that_was_put_back_is_not_shown_as_held(running):
    running.train(4.0)
    assert running.control.held == power_lever(PROBED_W)
    running.control.restore()
    assert running.control.held is None


def test_which_trial_holds_a_limit_is_told_and_whether_its_launcher_is_dead(running):
    uuid, folder = running.device.uuid, limits_directory(running.home)
    assert held_by(running.home, uuid) is None
    running.train(4.0)
    assert held_by(running.home, uuid) == "job-1-1"
    there = {"host": "b", "boot_id": None}
    for where, told in ((there, "job-2-1"), ({}, "job-2-1, dead: `zeusrun repair`")):
        write_record(folder, LimitRecord(f"{uuid}-x", 300.0, "job-2-1", **where))
        assert held_by(running.home, f"{uuid}-x") == told


def test_limits_are_opened_if_they_may_change_and_a_device_has_one(running):
    both = [SimpleNamespace(is_gpu=False), running.device]
    for mode, devices in (("observe", both), ("fixed", both[:1]), ("fixed", [])):
        assert open_limits(mode, devices, running.home, {}) is None
    assert isinstance(open_limits("optimize", both, running.home, {}), LimitHolder)


def test_a_limit_is_in_force_if_no_gpu_has_another(running):
    for others, in_force in (([], True), ([None], True), ([200.0], False), ([300.0, 200.0], False)):
        gpus = [SimpleNamespace(power_limit_w=lambda limit_w=each: limit_w) for each in others]
        running.control._gpus = [SimpleNamespace(), running.device, *gpus]
        assert running.control._is_in_force(power_lever(300.0)) is in_force


def test_steps_after_somebody_else_has_set_a_limit_are_not_taken_under_the_choice(running):
    running.train(15.0)
    assert running.control.stepped_under == {power_lever(PROBED_W)}
    running.device.set_power_limit_w(120.0)
    running.control.restore()
    running.train(1.0)
    assert running.control.stepped_under == {power_lever(PROBED_W), power_lever(300.0)}
    running.control._measures = False  # as it is without GPUs
    assert running.control.report(checked := PowerPoint(200.0, 5.0, 150.0)).profile == (checked,)
    assert running.control.report(None).profile == ()


def test_a_fixed_limit_is_restored_early_only_if_the_training_ends_at_once(tmp_path, monkeypatch):
    running = Running(tmp_path, monkeypatch, fixed_w=200.0)
    with running.holder:
        running.control.begin()
        for at_once, limit_w in ((False, 200.0), (True, 300.0)):
            running.control.wind_down(at_once=at_once)
            assert running.device.power_limit_w() == limit_w
        running.control._holder = None
        running.control.begin()  # there is nothing to hold
