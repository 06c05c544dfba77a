"""The load of others, over a made-up /proc."""

from __future__ import annotations

import os

import pytest

from tests.energy.test_cpu_times import FakeProc
from zeusrun.energy.cpu import TICKS_PER_S
from zeusrun.errors import DeviceError
from zeusrun.launcher.supervision.neighbours import OtherPrograms

ME = os.getpid()


class Machine(FakeProc):
    """Two CPUs; ``spend`` adds seconds to the counters of one."""

    def __init__(self, root):
        super().__init__(root)
        self.counters = {"cpu0": [100.0] * 10, "cpu1": [100.0] * 10}
        self.spend("cpu0")

    def spend(self, cpu, **seconds):
        names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest")
        for name, value in seconds.items():
            self.counters[cpu][names.index(name)] += value
        self.write(self.counters)

    def write(self, counters):
        hertz = TICKS_PER_S
        total = [sum(column) for column in zip(*self.counters.values(), strict=True)]
        lines = [
            f"{name} {' '.join(str(round(value * hertz)) for value in values)}"
            for name, values in {"cpu": total, **counters}.items()
        ]
        (self.root / "stat").write_text("\n".join([*lines, "intr 7 0", "ctxt 9"]) + "\n")


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def own_s():
    return [0.0]


@pytest.fixture
def begin(machine, own_s, clock):
    def make(cpus=(0, 1)):
        return OtherPrograms(machine.root, cpus, lambda: own_s[0], clock)

    return make


def shares(others):
    load = others.measure()
    return (pytest.approx(load.others), pytest.approx(load.idle))


def test_what_is_neither_idle_nor_of_this_run_is_of_others(machine, begin, own_s, clock):
    others = begin()
    machine.spend("cpu0", user=3.0, system=1.0, iowait=6.0)
    machine.spend("cpu1", user=2.0, nice=2.0, irq=1.0, softirq=1.0, idle=4.0)
    machine.set(201, parent=ME, own=3.5)
    own_s[0] = 0.5
    clock.advance(10.0)
    assert shares(others) == (0.3, 0.5)
    assert others.measure().seconds == 10.0


def test_time_that_the_host_takes_is_of_others_and_that_of_guests_counts_once(machine, begin):
    others = begin()
    machine.spend("cpu0", steal=5.0, user=5.0, guest=5.0)
    assert shares(others) == (1.0, 0.0)


def test_only_the_cpus_that_the_run_may_use_count(machine, begin):
    others = begin(cpus=[1])
    machine.spend("cpu0", user=10.0)
    machine.spend("cpu1", user=1.0, idle=9.0)
    assert shares(others) == (0.1, 0.9)


def test_where_its_cpus_are_not_listed_all_count(machine, begin):
    others = begin(cpus=[40, 41])
    machine.spend("cpu0", user=10.0)
    machine.spend("cpu1", idle=10.0)
    assert shares(others) == (0.5, 0.5)


def test_counters_that_go_back_and_cpus_that_come_or_go_do_no_harm(machine, begin):
    others = begin()
    machine.spend("cpu0", idle=-50.0, user=4.0, iowait=6.0)
    gone = {"cpu0": machine.counters["cpu0"], "cpu7": [500.0] * 10}
    machine.write(gone)
    assert shares(others) == (0.4, 0.6)


def test_more_time_of_its_own_than_was_counted_leaves_nothing_to_others(machine, begin, own_s):
    others = begin()
    machine.spend("cpu0", user=1.0, idle=1.0)
    own_s[0] = 1.1
    assert shares(others) == (0.0, 0.5)


def test_counters_that_stand_still_tell_nothing(begin):
    assert begin().measure() is None


@pytest.mark.parametrize("text", [None, "cpu0 one two three\n"])
def test_without_counters_it_is_a_device_error(machine, begin, text):
    others = begin()
    (machine.root / "stat").unlink()
    if text is not None:
        (machine.root / "stat").write_text(text)
    for act in (others.measure, begin):
        with pytest.raises(DeviceError, match="stat cannot be read"):
            act()


def test_a_file_without_cpus_tells_nothing(machine, begin):
    (machine.root / "stat").write_text("intr 7\n")
    assert begin().measure() is None
