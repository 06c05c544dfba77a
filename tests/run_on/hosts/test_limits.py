"""Power limits of several hosts: held on each or on none, and restored whatever dies.

The other hosts are real launchers with real guards, each on a machine of fake GPUs; this host has
simulated ones.
"""

from __future__ import annotations

import functools
import os
import secrets
import signal

import pytest

from tests.gpu.fixtures import GpuMachine
from tests.gpu.power_limits.test_holder import NoGuard
from tests.gpu.simulated import SimulatedDevice
from tests.run_on.hosts.ends import prepare
from tests.runs import wait_for
from zeusrun.errors import BusyError, DeviceError, LaunchError, LimitRefusedError
from zeusrun.gpu.power_limits.holder import LimitHolder
from zeusrun.gpu.power_limits.original_limits import is_held
from zeusrun.lever import POWER, Lever
from zeusrun.run_on.hosts.devices import JoinedLimits

FOUND_W, OWN_W = 312.345, 300.0
watts = functools.partial(Lever, POWER)


class Machine:
    """Another host with two GPUs."""

    def __init__(self, hosts, library, folder, name, number):
        folder.mkdir()
        self.gpus = GpuMachine(library, folder)
        for gpu in range(2):
            self.gpus.set_limit_w(gpu, FOUND_W)
        self.node, self.process = hosts.start(name, number, **self.gpus.environment)
        prepare(self.node, folder / "home", ranks="gpu", env={})

    def limits_w(self):
        return {self.gpus.limit_w(gpu) for gpu in range(2)}

    def kill(self):
        os.kill(self.process._process.pid, signal.SIGKILL)  # env has become it
        wait_for(lambda: self.node.lost)


@pytest.fixture
def b(hosts, plain_library, tmp_path):
    return Machine(hosts, plain_library, tmp_path / "b", "b", 1)


@pytest.fixture
def c(hosts, plain_library, tmp_path):
    return Machine(hosts, plain_library, tmp_path / "c", "c", 2)


@pytest.fixture
def own(clock):
    return SimulatedDevice(clock, uuid=f"GPU-{secrets.token_hex(4)}")


@pytest.fixture
def holder(own, tmp_path):
    return LimitHolder([own], tmp_path / "own", NoGuard())


def test_a_limit_is_held_on_both_and_both_are_restored(own, holder, b):
    with JoinedLimits(holder, [b.node.limits], "optimize") as limits:
        assert limits.refused is None
        assert limits.levers
        assert {*limits.levers} <= {*holder.levers}
        assert limits.levers == tuple(sorted(limits.levers, key=lambda lever: lever.value))
        for held_w in (150.0, 200.0):
            limits.hold(watts(held_w), "job-1-1")
            assert (own.power_limit_w(), b.limits_w()) == (held_w, {held_w})
        limits.check(watts(125.0))
        limits.keep_guarded()
        assert b.limits_w() == {200.0}
        limits.restore()
        assert (own.power_limit_w(), b.limits_w()) == (OWN_W, {FOUND_W})
        limits.hold(watts(150.0), "job-1-2")
        # What only one of the hosts accepts changes nothing on either.
        for wrong_w in (350.0, 50.0):
            with pytest.raises(DeviceError, match="W"):
                limits.hold(watts(wrong_w), "job-1-2")
            assert (own.power_limit_w(), b.limits_w()) == (OWN_W, {FOUND_W})
        limits.hold(watts(150.0), "job-1-2")
    assert (own.power_limit_w(), b.limits_w()) == (OWN_W, {FOUND_W})
    assert limits.unrestored is None


def test_a_limit_that_one_host_refuses_is_held_on_none(own, holder, b):
    with JoinedLimits(holder, [b.node.limits], "optimize") as limits:
        limits.hold(watts(150.0), "job-1-1")
        b.gpus.set_limit_w(1, 180.0)  # somebody else
        with pytest.raises(LimitRefusedError, match=r"^host b: .*stays at 180 W"):
            limits.hold(watts(200.0), "job-1-1")
        assert own.power_limit_w() == OWN_W
        assert b.limits_w() == {FOUND_W, 180.0}
    assert own.power_limit_w() == OWN_W
    assert b.limits_w() == {FOUND_W, 180.0}


def test_without_permission_on_one_host_no_limit_is_changed(own, holder, hosts, b):
    b.gpus.set("permission", 0)
    with JoinedLimits(holder, [b.node.limits], "optimize") as limits:
        assert limits.refused.startswith("host b: ")
        assert limits.levers == ()
        with pytest.raises(LimitRefusedError, match=r"host b: .*cannot be held"):
            limits.hold(watts(150.0), "job-1-1")
        assert own.power_limit_w() == OWN_W


def test_of_a_host_that_dies_the_guard_there_restores_the_limits(own, holder, b, c):
    with JoinedLimits(holder, [b.node.limits, c.node.limits], "optimize") as limits:
        limits.hold(watts(150.0), "job-1-1")
        assert (own.power_limit_w(), b.limits_w(), c.limits_w()) == (150.0, {150.0}, {150.0})
        b.kill()
        wait_for(lambda: b.limits_w() == {FOUND_W}, 60.0, "the guard")
        with pytest.raises(DeviceError, match="host b is lost"):
            limits.restore()
        # The others are restored all the same.
        assert (own.power_limit_w(), c.limits_w()) == (OWN_W, {FOUND_W})
        with pytest.raises(DeviceError, match="host b is lost"):
            limits.hold(watts(200.0), "job-1-1")
        assert (own.power_limit_w(), c.limits_w()) == (OWN_W, {FOUND_W})


def test_if_the_head_dies_each_launcher_restores_its_limits(own, holder, b):
    with JoinedLimits(holder, [b.node.limits], "optimize") as limits:
        limits.hold(watts(150.0), "job-1-1")
        os.close(b.process.writing)
        wait_for(lambda: b.limits_w() == {FOUND_W})
        wait_for(lambda: b.node.lost)
        b.node.channel._writing = os.open(os.devnull, os.O_WRONLY)


def test_where_another_host_is_busy_nothing_stays_locked_here(own, holder, tmp_path, hosts):
    node, there = hosts.play()
    there.send("answer", call=1, error="trial x holds its power limit", type="BusyError")
    limits = JoinedLimits(holder, [node.limits], "optimize")
    with pytest.raises(BusyError, match=r"^host b: trial x"):
        limits.__enter__()
    assert not is_held(own.uuid, tmp_path / "own")


def test_a_host_without_gpus_to_limit_has_no_say(own, holder, hosts):
    node, there = hosts.play()
    there.send("answer", call=1, levers=None, refused=None, taken=None)
    with JoinedLimits(holder, [node.limits], "optimize") as limits:
        assert limits.levers == holder.levers
        limits.hold(watts(150.0), "job-1-1")
        assert own.power_limit_w() == 150.0
        node.mark_lost("gone")
    assert own.power_limit_w() == OWN_W


def test_what_another_host_could_not_restore_is_told(own, holder, hosts):
    node, there = hosts.play()
    there.send("answer", call=1, levers=[100.0, 150.0], refused=None, taken=None)
    there.send("answer", call=2, error="GPU 0 is lost", type="DeviceError")
    with JoinedLimits(holder, [node.limits], "optimize") as limits:
        assert limits.unrestored is None
    assert limits.unrestored == "host b: GPU 0 is lost"
    assert own.power_limit_w() == OWN_W


def test_where_no_host_has_a_limit_there_are_no_levers(hosts):
    """Devices of a plugin, on both hosts."""
    node, there = hosts.play()
    there.send("answer", call=1, levers=None, refused=None, taken=None)
    with JoinedLimits(None, [node.limits], "optimize") as limits:
        assert limits.levers == ()
        assert limits.refused is None


def test_a_host_that_is_lost_before_is_told(holder, hosts):
    node, there = hosts.play()
    there.close()
    with pytest.raises(LaunchError, match="host b is lost"):
        JoinedLimits(holder, [node.limits], "optimize").__enter__()
