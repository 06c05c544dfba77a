"""The kernel's own count of out-of-memory kills, where it keeps it, and a real one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from zeusrun.launcher.rundir.failure import count_oom_kills

V1 = "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/a\n"
EVENTS = "low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, None),
        ({"proc/vmstat": "pgfault 7\noom_kill 9\n"}, 9),
        ({"proc/vmstat": "pgfault 7\n"}, None),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.events": EVENTS}, 1),
        # in a container: the path is the host's, what is mounted is the group itself
        ({"proc/self/cgroup": "0::/../x\n", "sys/fs/cgroup/memory.events": EVENTS}, 1),
        ({"proc/self/cgroup": V1, "sys/fs/cgroup/memory/a/b/memory.oom_control": CONTROL}, 4),
        ({"proc/self/cgroup": V1, "sys/fs/cgroup/memory/memory.oom_control": CONTROL}, 4),
        ({"proc/self/cgroup": V1, "proc/vmstat": "oom_kill 2\n"}, 2),
        ({"proc/self/cgroup": "nonsense\n\n:\n", "proc/vmstat": "oom_kill 2\n"}, 2),
    ],
)
def test_the_count_is_found_where_the_kernel_keeps_it(tmp_path, files, count):
    write(tmp_path, {"proc/other": "", **files})
    assert count_oom_kills(tmp_path) == count


@pytest.fixture
def small_group():
    """A control group of 500 MB, as a container has."""
    group = Path(f"/sys/fs/cgroup/memory/zeusrun-test-{os.getpid()}")
    unified = Path(f"/sys/fs/cgroup/zeusrun-test-{os.getpid()}")
    for path, limit in ((group, "memory.limit_in_bytes"), (unified, "memory.max")):
        try:
            path.mkdir(exist_ok=True)
            (path / limit).write_text(str(500 << 20))
        except OSError:
            continue
        yield path / "cgroup.procs"
        path.rmdir()
        return
    pytest.skip("needs root and a memory control group that may be written")


def test_a_rank_that_the_kernel_kills_for_memory_has_run_out_of_memory(zeusrun, small_group):
    done = subprocess.run(
        zeusrun.argv("submit", zeusrun.job("fills_the_memory.py", attempts=2), "--json"),
        env=zeusrun.environment,
        preexec_fn=lambda: small_group.write_text(str(os.getpid())),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    trials = zeusrun.history()
    assert (done.returncode, [trial["status"] for trial in trials]) == (3, ["OOM", "OOM"])
    assert "the host ran out of memory" in trials[0]["reason"]
    first, second = (trial["global_batch_size"] for trial in trials)
    assert second < first  # that arm and larger ones are avoided
