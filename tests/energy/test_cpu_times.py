"""CPU time of descendants: over a made-up /proc, and of real processes."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from zeusrun.energy.cpu import TICKS_PER_S, DescendantTimes

SELF = 100


class FakeProc:
    """A folder of ``stat`` files, in seconds."""

    def __init__(self, root):
        self.root = root
        self.reaped = 0.0
        self.set(SELF, parent=1, own=50.0)

    def set(self, pid, *, parent, own=0.0, reaped=0.0, started=7, name="python"):
        (self.root / str(pid)).mkdir(exist_ok=True)
        ticks = [round(value * TICKS_PER_S) for value in (own, 0.0, reaped, 0.0)]
        fields = ["S", parent, *[0] * 9, *ticks, *[0] * 4, started, *[0] * 30]
        text = f"{pid} ({name}) " + " ".join(map(str, fields)) + "\n"
        (self.root / str(pid) / "stat").write_text(text, encoding="ascii")

    def remove(self, pid):
        (self.root / str(pid) / "stat").unlink()
        (self.root / str(pid)).rmdir()


@pytest.fixture
def proc(tmp_path):
    return FakeProc(tmp_path)


@pytest.fixture
def times(proc, clock):
    return DescendantTimes(SELF, proc.root, lambda: proc.reaped, clock)


def test_live_descendants_count_with_the_children_they_reaped(proc, clock, times):
    proc.set(201, parent=SELF, own=1.0, reaped=2.0)
    proc.set(202, parent=201, own=4.0)
    proc.set(203, parent=202, own=8.0)
    clock.advance(1.0)
    assert times.cpu_s() == pytest.approx(15.0)


def test_neither_this_process_nor_strangers_count(proc, clock, times):
    proc.set(SELF, parent=1, own=99.0)
    proc.set(300, parent=1, own=7.0)
    proc.set(301, parent=300, own=7.0)
    clock.advance(1.0)
    assert times.cpu_s() == 0.0


def test_only_what_is_used_after_the_start_counts(proc, clock):
    proc.set(201, parent=SELF, own=5.0)
    proc.reaped = 3.0
    times = DescendantTimes(SELF, proc.root, lambda: proc.reaped, clock)
    assert times.cpu_s() == 0.0
    proc.set(201, parent=SELF, own=6.0)
    assert times.cpu_s() == pytest.approx(1.0)


def test_known_descendants_are_read_every_time_and_new_ones_found_within_a_second(
    proc, clock, times
):
    proc.set(201, parent=SELF, own=1.0)
    assert times.cpu_s() == 0.0
    clock.advance(1.0)
    assert times.cpu_s() == pytest.approx(1.0)
    proc.set(201, parent=SELF, own=3.0)
    assert times.cpu_s() == pytest.approx(3.0)


def test_time_moves_from_a_child_to_whoever_reaps_it_without_a_change(proc, clock, times):
    proc.set(201, parent=SELF, own=1.0)
    proc.set(202, parent=201, own=4.0)
    clock.advance(1.0)
    assert times.cpu_s() == pytest.approx(5.0)
    proc.remove(202)
    proc.set(201, parent=SELF, own=1.0, reaped=4.0)
    assert times.cpu_s() == pytest.approx(5.0)
    proc.remove(201)
    proc.reaped = 5.0
    assert times.cpu_s() == pytest.approx(5.0)


def test_a_child_reaped_between_two_reads_is_not_counted_twice(proc, clock):
    """The parent is read first, so the child is missing once; it must not come on top later."""
    proc.set(201, parent=SELF, own=10.0)
    times = DescendantTimes(SELF, proc.root, lambda: proc.reaped, clock)
    proc.remove(201)
    assert times.cpu_s() == 0.0
    clock.advance(0.1)
    proc.reaped = 10.5
    assert times.cpu_s() == pytest.approx(0.5)
    clock.advance(5.0)
    assert times.cpu_s() == pytest.approx(0.5)


def test_parents_are_read_before_their_children(proc, clock, times, monkeypatch):
    proc.set(299, parent=SELF)
    proc.set(201, parent=299)
    proc.set(250, parent=201)
    clock.advance(1.0)
    times.cpu_s()
    read = []
    name = "zeusrun.energy.cpu.read_stat"
    monkeypatch.setattr(name, lambda pid, _proc: read.append(pid))
    times.cpu_s()
    assert read == [299, 201, 250]


def test_an_orphan_is_followed(proc, clock, times):
    proc.set(201, parent=SELF, own=1.0)
    proc.set(202, parent=201, own=1.0)
    clock.advance(1.0)
    assert times.cpu_s() == pytest.approx(2.0)
    proc.remove(201)
    proc.reaped = 1.0
    proc.set(202, parent=1, own=6.0)
    clock.advance(1.0)
    assert times.cpu_s() == pytest.approx(7.0)


def test_what_an_orphan_used_is_kept_when_it_ends_and_the_others_count_on(proc, clock, times):
    proc.set(201, parent=SELF, own=1.0)
    proc.set(202, parent=201, own=30.0)
    clock.advance(1.0)
    assert times.cpu_s() == pytest.approx(31.0)
    proc.remove(202)
    assert times.cpu_s() == pytest.approx(31.0)
    proc.set(201, parent=SELF, own=2.0)
    clock.advance(1.0)
    assert times.cpu_s() == pytest.approx(32.0)
    proc.set(201, parent=SELF, own=14.0)
    assert times.cpu_s() == pytest.approx(44.0)


def test_a_number_given_to_another_process_is_not_mistaken(proc, clock, times):
    proc.set(201, parent=SELF, own=1.0)
    clock.advance(1.0)
    assert times.cpu_s() == pytest.approx(1.0)
    proc.reaped = 1.0
    proc.set(201, parent=1, own=500.0, started=8)
    clock.advance(0.1)
    assert times.cpu_s() == pytest.approx(1.0)
    clock.advance(2.0)
    assert times.cpu_s() == pytest.approx(1.0)


def test_a_name_may_hold_brackets_and_spaces(proc, clock, times):
    proc.set(201, parent=SELF, own=2.0, name="a) R 1 (b")
    clock.advance(1.0)
    assert times.cpu_s() == pytest.approx(2.0)


BURN = """
import subprocess, sys, time
while time.process_time() < 0.3:
    pass
{more}
print(time.process_time(), flush=True)
sys.stdin.readline()
"""
FORK = "subprocess.run([sys.executable, '-c', 'import time\\nwhile time.process_time() < .3: 1'])"


@pytest.mark.parametrize(("more", "burners"), [("", 1), (FORK, 2)])
def test_a_real_process_counts_once_while_it_lives_and_after(more, burners):
    now_s = [0.0]
    times = DescendantTimes(clock=lambda: now_s[0])
    child = subprocess.Popen(
        [sys.executable, "-c", BURN.format(more=more)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        own_s = float(child.stdout.readline())
        now_s[0] += 1.0
        alive_s = times.cpu_s()
        child.stdin.write("\n")
    now_s[0] += 5.0
    ended_s = times.cpu_s()
    least_s = own_s + 0.3 * (burners - 1)
    assert least_s - 0.1 <= alive_s <= least_s + 0.25
    assert alive_s <= ended_s <= alive_s + 0.25


def test_the_cpu_time_of_this_process_does_not_count():
    times = DescendantTimes()
    until_s = time.process_time() + 0.1
    while time.process_time() < until_s:
        pass
    assert times.cpu_s() == 0.0
