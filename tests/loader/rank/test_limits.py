"""How many workers cores and memory allow, also in control groups."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from zeusrun.loader.rank import limits

MIB = 1 << 20


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Let this process be in ``outer/inner``; return what writes files of these groups."""
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    read = Path.read_text
    own = "0::/outer/inner\n"
    monkeypatch.setattr(
        Path, "read_text", lambda p, **o: own if str(p) == "/proc/self/cgroup" else read(p, **o)
    )
    monkeypatch.setattr(limits, "_GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))

    def write(name, **files):
        for file, content in files.items():
            (tmp_path / name / file.replace("_", ".")).write_text(str(content))

    return write


def test_cores_are_those_of_the_affinity_and_of_the_tightest_group(groups):
    assert limits.count_cores() == 16
    groups("outer/inner", cpu_max="max 100000")
    assert limits.count_cores() == 16
    groups("outer", cpu_max="350000 100000")
    assert limits.count_cores() == 3
    groups("outer/inner", cpu_max="50000 100000")
    assert limits.count_cores() == 1
    groups("outer/inner", cpu_max="nonsense")
    assert limits.count_cores() == 3


@pytest.fixture
def worker():
    """Start a process with about 64 MiB of its own."""
    code = "x = bytearray(b'1') * (64 << 20); print(flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    yield child.pid
    child.communicate(b"\n")


def machine(monkeypatch, available, total):
    found = SimpleNamespace(available=available * MIB, total=total * MIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: found)


def test_workers_leave_a_fifth_of_the_memory_free(groups, worker, monkeypatch):
    machine(monkeypatch, 1000, 2000)  # 600 MiB may be used
    own_mib = limits._private_bytes(worker) / MIB
    assert 60 < own_mib < 100
    assert limits.count_that_fit([worker], 1) == 1 + int(600 / own_mib)
    assert limits.count_that_fit([worker], 2) == 1 + int(300 / own_mib)
    machine(monkeypatch, 300, 2000)
    assert limits.count_that_fit([worker, worker], 1) == 2
    machine(monkeypatch, 1000, 2000)
    groups(
        "outer",
        memory_max=400 * MIB,
        memory_current=200 * MIB,
        memory_stat=f"inactive_file {8 * MIB}\nanon 9",
    )
    assert limits.count_that_fit([worker], 1) == 1 + int((400 - 200 + 8 - 80) / own_mib)


def test_without_a_worker_to_look_at_it_doubles(groups):
    assert limits.count_that_fit([], 1) == 1
    assert limits.count_that_fit([1 << 30, 1 << 30], 1) == 4
