"""The launcher of a node, in a thread or a process of its own, with a small torchrun."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from tests.factories import FAKE_TORCHRUN
from tests.run_on.hosts.ends import ON_CPU, command, connect, events, frame, prepare
from tests.runs import wait_for
from zeusrun.errors import LaunchError
from zeusrun.launcher.processes.command import Torchrun
from zeusrun.launcher.processes.torchrun import StopLevel
from zeusrun.launcher.rundir.layout import create_run
from zeusrun.run_on.hosts import node_launcher
from zeusrun.run_on.hosts.channel import write_all
from zeusrun.run_on.hosts.node_launcher import NodeLauncher, versions
from zeusrun.run_on.hosts.remote_node import RemoteNode


@pytest.fixture
def torchrun(monkeypatch):
    """Let launchers in this process start the fake torchrun."""
    code = "import sys; sys.path[:] = filter(None, sys.path); from torch.distributed.run import main; main()"
    found = Torchrun((sys.executable, "-c", code), "2", frozenset())
    monkeypatch.setattr(node_launcher, "find_torchrun", lambda: found)
    return {"PYTHONPATH": str(FAKE_TORCHRUN)}


def run(node, paths, *script, **changes):
    """Run a script to its end; return how it ended."""
    node.start(command(paths, node, *script, **changes), paths, 5.0)
    node.wait_until_started()
    return node.finish()


@pytest.fixture
def node(hosts, tmp_path):
    return prepare(hosts.serve(), tmp_path / "home", ranks=2, first=0)


def test_it_says_its_versions_and_its_host(hosts):
    node = hosts.serve()
    assert node.hello["versions"] == versions()
    assert versions().keys() == {"zeusrun", "torch", "Python"}


def test_messages_for_another_node_are_ignored(hosts):
    """Some fan-outs give standard input to every node."""
    node = hosts.serve()
    other = json.dumps({"kind": "prepare", "node": 2, "call": 7}).encode()
    write_all(node.channel._writing, frame(other))
    write_all(node.channel._writing, frame(json.dumps({"kind": "bye", "node": 2}).encode()))
    before_t = node.heard_t
    node.ping()
    wait_for(lambda: node.heard_t > before_t)
    assert node._answers == {}
    assert node.lost is None


def test_what_it_prepares_is_told(node):
    assert node.ranks == range(2)
    (device,) = node.devices
    assert not device.is_gpu
    assert device.uuid.startswith("b/")
    assert device.read().energy_j >= 0


def test_a_wrong_interface_is_refused_before_anything_starts(hosts, tmp_path):
    with pytest.raises(LaunchError, match=r"^host b has no interface bogus0; it has .*lo"):
        prepare(hosts.serve(), tmp_path, nic="bogus0")


def test_readings_come_ten_times_a_second(node):
    first = node.devices[0].read().t
    wait_for(lambda: node.devices[0].read().t > first)


def test_nothing_starts_before_it_is_prepared(hosts, paths):
    node = hosts.serve()
    node.ranks = range(1, 2)
    with pytest.raises(LaunchError, match=r"^host b: it was not prepared"):
        run(node, paths, "well.py")


def test_ranks_are_run_and_what_they_write_is_copied(node, paths, torchrun):
    end = run(node, paths, "well.py", "--epoch-s", 0, env=torchrun)
    assert (end.code, node.failed) == (0, False)
    found = [record["event"] for record in events(paths)]
    assert found.count("started") == 2
    for rank in (0, 1):
        assert f"epoch 5 of rank {rank}\nthe end\n" in paths.rank_log(rank).read_text()
    assert not paths.torchrun_log.exists()
    wait_for(lambda: not paths.of_node(1).run_dir.exists())


def test_a_failure_there_is_told_with_its_record(node, paths, torchrun):
    end = run(node, paths, "exits_7.py", env=torchrun)
    assert end.code == 1
    assert node.failed
    record = json.loads((paths.run_dir / "error.1.json").read_text())
    assert record["exit_code"] == 7
    assert "FAILED" in (paths.logs / "torchrun.1.log").read_text()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"cwd": "/nonexistent"},
            "host b: there is no /nonexistent. The script and its data need the same path",
        ),
        ({"script": "/nonexistent/train.py"}, "host b: there is no /nonexistent/train.py"),
        ({"own_env": ["TOKEN_OF_ZEUSRUN"]}, "host b: TOKEN_OF_ZEUSRUN is not set"),
        ({"continues": True}, "host b: the run continues from .*, and this host has none"),
    ],
)
def test_what_a_host_lacks_is_told_before_the_start(node, paths, changes, said, torchrun):
    asked = {
        "pid": os.getpid(),
        "run_dir": str(paths.run_dir),
        "ranks": [1, 2],
        "argv": [],
        "worker": "w",
        "env": {},
        "own_env": [],
        "cwd": "/",
        "script": None,
        "grace_s": 5.0,
        "continues": False,
    }
    with pytest.raises(LaunchError, match=rf"^{said}"):
        node.call("start", **{**asked, **changes})


def test_a_folder_that_cannot_be_made_is_told(node, paths, torchrun):
    (paths.run_dir / "nodes").write_text("in the way")
    with pytest.raises(LaunchError, match=r"^host b: .*cannot be created there: .*ZEUSRUN_HOME"):
        run(node, paths, "well.py", "--epoch-s", 0, env=torchrun)


def begin(node, paths, env):
    """Start ranks that train for a long time."""
    env = {**env, "ZEUSRUN_MAX_EPOCHS": "500"}
    asked = command(paths, node, "well.py", "--epoch-s", 0, "--epochs", 500, "--gain", 0, env=env)
    node.start(asked, paths, 5.0)
    node.wait_until_started()
    wait_for(lambda: paths.sidecar.exists() and b"reported" in paths.sidecar.read_bytes())


def test_a_stop_ends_the_ranks_gracefully(node, paths, torchrun):
    begin(node, paths, env=torchrun)
    node.stop(StopLevel.ASK)
    end = node.finish()
    assert end.code == 0
    assert end.outlived == ()


def pids_of(paths):
    """Return the processes of the ranks, without the number of their node."""
    pids = [record["pid"] for record in events(paths) if record["event"] == "started"]
    assert {pid >> 32 for pid in pids} == {1}
    return [pid & 0xFFFFFFFF for pid in pids]


def gone(pids):
    return lambda: (
        not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)
    )


def test_if_the_head_dies_the_ranks_are_killed(paths, tmp_path, hosts, torchrun):
    head, own = connect()
    launcher = NodeLauncher(own)
    thread = threading.Thread(target=launcher.serve)
    thread.start()
    node = prepare(RemoteNode(1, "b", head), tmp_path, ranks=2, first=0)
    begin(node, paths, env=torchrun)
    pids = pids_of(paths)
    begun_t = time.monotonic()
    os.close(head._writing)
    wait_for(gone(pids), 60.0, "the end of the ranks")
    assert time.monotonic() - begun_t < 4.0  # less than their grace
    thread.join(60.0)
    assert not thread.is_alive()
    head._writing = os.open(os.devnull, os.O_WRONLY)
    node.close()


def test_if_the_head_is_silent_the_ranks_may_save_first(hosts, paths, tmp_path, torchrun):
    node = prepare(hosts.serve(), tmp_path, ranks=1, first=0)
    begin(node, paths, env=torchrun)  # with its report, the rank listens
    again = node.call(
        "prepare",
        host="b",
        nic="lo",
        head="127.0.0.1",
        heartbeat_s=0.3,
        home=str(tmp_path),
        env={},
        nproc_per_node=1,
        most=None,
    )
    assert again["ranks"] == 1
    end = node.finish()
    assert end.code == 0  # each has ended after its epoch
    why = r"host b left because it heard nothing from this host for \d+ s \(run_on.heartbeat_s\)"
    assert re.fullmatch(why, node.lost)  # and not how the fan-out has ended


def test_a_launcher_that_was_stopped_reads_before_it_leaves(node, tmp_path, monkeypatch):
    looks = []

    def later():
        looks.append(time.monotonic() + 3600.0)
        return looks[-1]

    monkeypatch.setattr(node_launcher, "time", SimpleNamespace(monotonic=later))
    wait_for(lambda: len(looks) > 5)
    prepare(node, tmp_path / "home", ranks=2, first=0)
    assert node.lost is None


def test_a_signal_to_the_launcher_is_passed_to_the_head(node, hosts):
    os.kill(os.getpid(), signal.SIGUSR1)
    wait_for(lambda: node.signals)
    assert [*node.signals] == [signal.SIGUSR1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_launcher_that_waits_for_a_run_ends_at_a_signal(hosts, number):
    node = hosts.serve()
    os.kill(os.getpid(), number)
    assert (
        wait_for(lambda: node.lost) == f"host b left because it got {signal.Signals(number).name}"
    )
    assert [*node.signals] == [number]


def test_variables_of_the_node_win_over_defaults_and_those_of_the_job_over_both(
    hosts, paths, tmp_path, torchrun, monkeypatch
):
    """The node has its own number of cores, and its own name of the interface."""
    names = ("OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "=ib0")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    job = {"NCCL_SOCKET_IFNAME": "=${job}0"}
    node = prepare(hosts.serve(), tmp_path / "home", first=0, env={**ON_CPU, **job})
    (tmp_path / "shows.py").write_text(f"import os\nfor name in {names}: print(os.environ[name])")
    defaults = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=job0"}
    run(node, paths, tmp_path / "shows.py", env={**torchrun, **defaults})
    assert paths.rank_log(0).read_text().split() == ["8", "=job0", "lo"]


def test_what_ranks_save_without_a_shared_file_system_is_told(node, tmp_path, torchrun):
    paths = create_run(tmp_path / "head", "job", "job-1-1")
    there = create_run(tmp_path / "there", "job", "job-1-1")
    (there.checkpoints / "model.pt").write_text("x")
    # The node has another disk: what it writes there is copied into the head's directory.
    asked = command(there, node, "well.py", "--epoch-s", 0, env=torchrun)
    node.start(asked, there, 5.0)
    node._paths = paths
    node.wait_until_started()
    assert node.finish().code == 0
    assert [*node.notices] == [
        f"host b: its checkpoints are on its own disk, in {there.checkpoints}"
    ]
    assert (there.checkpoints / "model.pt").exists()
    assert events(paths)
