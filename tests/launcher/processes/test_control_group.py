"""The control group of a run, in the kernel's own cgroup v2."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import has_ended, wait_for
from zeusrun.launcher.processes.command import Command
from zeusrun.launcher.processes.descendants import _own_group, end_group, make_group
from zeusrun.launcher.processes.torchrun import StopLevel, TorchrunProcess
from zeusrun.launcher.rundir.layout import create_run

allowed = pytest.mark.skipif(_own_group() is None, reason="no control group can be made here")
# A daemon that nothing of the run can be seen in, once the test allows that it may start.
DAEMON = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
while not (folder / "go").exists():
    time.sleep(0.01)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        (folder / "daemon.new").write_text(str(os.getpid()))
        (folder / "daemon.new").rename(folder / "daemon")
        os.execve("/bin/sleep", ["sleep", "600"], {variables})
    os._exit(0)
{then}
"""


@pytest.fixture
def paths(tmp_path):
    return create_run(tmp_path, "job", "job-1-1")


@pytest.fixture
def start(paths, tmp_path):
    """Return a run whose program starts a daemon; what is still in its group ends at the end."""

    def run(variables="{}", then="while True: time.sleep(600)"):
        program = DAEMON.format(variables=variables, then=then)
        environment = {**os.environ, "ZEUSRUN_RUN_DIR": str(paths.run_dir)}
        argv = (sys.executable, "-c", program, str(tmp_path))
        return TorchrunProcess(Command(argv, environment, Path.cwd()), paths, 60)

    yield run
    end_group(paths)


def group_of(paths):
    return Path(paths.control_group.read_text())


def start_daemon(paths, tmp_path):
    """Let the program start its daemon once it is in its group; return the pid of the daemon."""
    procs = group_of(paths) / "cgroup.procs"
    wait_for(procs.read_text, what="a member of the group")
    (tmp_path / "go").touch()
    wait_for((tmp_path / "daemon").exists)
    daemon = int((tmp_path / "daemon").read_text())
    assert str(daemon) in procs.read_text().split()
    return daemon


@allowed
def test_each_run_has_a_group_of_its_own_while_it_runs(start, paths):
    with start() as process:
        group = group_of(paths)
        wait_for((group / "cgroup.procs").read_text)
        process.stop(StopLevel.KILL, lambda: False)
    assert not group.exists()
    assert not paths.control_group.exists()


@allowed
def test_if_the_watchdog_is_killed_a_daemon_without_any_variable_is_ended(start, paths, tmp_path):
    with start() as process:
        group, daemon = group_of(paths), start_daemon(paths, tmp_path)
        process._watchdog.kill()
        wait_for(lambda: process.wait() or not process.is_running())
    wait_for(lambda: has_ended(daemon))
    assert not group.exists()


@allowed
def test_the_group_of_a_killed_launcher_is_removed_by_the_watchdog(paths, tmp_path, start):
    watchdog = start().__enter__()._watchdog
    group, daemon = group_of(paths), start_daemon(paths, tmp_path)
    watchdog.communicate()  # closes its input, as the death of the launcher does
    assert has_ended(daemon)
    assert not group.exists()


@allowed
def test_a_group_is_removed_with_all_processes_and_the_groups_in_it(paths):
    group = make_group(paths)
    inner = group / "zeusrun-inner"
    inner.mkdir()
    child = subprocess.Popen(["sleep", "600"])
    (inner / "cgroup.procs").write_text(str(child.pid))
    end_group(paths)
    assert child.wait(300) == -signal.SIGKILL
    assert not group.exists()
    assert not paths.control_group.exists()


def test_a_path_that_names_no_group_of_ours_is_left_alone(paths, tmp_path):
    (folder := tmp_path / "zeusrun-1").mkdir()
    paths.control_group.write_text(str(folder))
    end_group(paths)
    assert folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize(
    "mount",
    ["mount -t tmpfs none /sys/fs/cgroup", "mount --rbind -o ro / / && mount -o remount,bind,ro /"],
    ids=["absent", "read-only"],
)
def test_where_no_group_can_be_made_a_run_has_none(paths, mount):
    if mount.startswith("mount --rbind"):
        mount = "mount --bind /sys/fs/cgroup /mnt && for at in /sys/fs/cgroup "
        mount += "/sys/fs/cgroup/unified; do mount -o remount,bind,ro $at || true; done"
    program = """
import sys
from pathlib import Path
from zeusrun.launcher.processes.descendants import make_group
from zeusrun.launcher.rundir.layout import RunPaths
paths = RunPaths(Path(sys.argv[1]))
print(make_group(paths), paths.control_group.exists())
"""
    argv = ["unshare", "-m", "sh", "-c", f'{mount}; exec "$@"', "-", sys.executable, "-c", program]
    done = subprocess.run([*argv, paths.run_dir], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this container may not mount: {done.stderr}")
    assert done.stdout == "None False\n"


@pytest.mark.parametrize("level", [StopLevel.NONE, StopLevel.TERMINATE])
def test_a_daemon_that_says_that_it_belongs_to_no_run_lives_on_if_the_script_ends_by_itself(
    start, paths, tmp_path, level
):
    then = "pass" if level is StopLevel.NONE else "while True: time.sleep(600)"
    (tmp_path / "go").touch()
    with start("{'ZEUSRUN_RUN_DIR': ''}", then) as process:
        wait_for((tmp_path / "daemon").exists)
        daemon = int((tmp_path / "daemon").read_text())
        while process.is_running():
            process.stop(level, lambda: False)
            process.wait()
    lives = not has_ended(daemon)
    if lives:
        os.kill(daemon, signal.SIGKILL)
    assert lives == (level is StopLevel.NONE)
    assert len(process.exit.outlived) == (0 if lives else 1)
    assert not paths.control_group.exists()
