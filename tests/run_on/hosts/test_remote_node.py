"""The head's side of a node: what it asks, hears, times and gives up."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time

import pytest

from tests.factories import FAKE_TORCHRUN, temporary_folder
from tests.run_on.hosts.ends import (
    Relay,
    command,
    events,
    measure,
    prepare,
    until,
)
from tests.runs import wait_for
from zeusrun import errors
from zeusrun.errors import BusyError, DeviceError, LaunchError, LimitRefusedError, UsageError
from zeusrun.jobfile.run_on_section import RunOn
from zeusrun.launcher.processes.command import Command
from zeusrun.launcher.processes.torchrun import ProcessExit, StopLevel, TorchrunProcess
from zeusrun.launcher.supervision.ranks import RunningRanks, _join_exits
from zeusrun.run_on.hosts import cluster as module
from zeusrun.run_on.hosts import remote_node
from zeusrun.run_on.hosts.channel import Channel
from zeusrun.run_on.hosts.cluster import Cluster, _check_hello
from zeusrun.run_on.hosts.node_launcher import versions
from zeusrun.sidecar.events import Started
from zeusrun.sidecar.step_clock import StepCount


def answering(own, **answers):
    """Answer each message of a kind as told, from a thread, until the head leaves."""

    def run():
        while (message := own.receive()) is not None:
            if message["kind"] in answers:
                said = answers[message["kind"]]
                own.send(
                    "answer", call=message["call"], **(said(message) if callable(said) else said)
                )

    threading.Thread(target=run, daemon=True).start()


# Answers


@pytest.mark.parametrize(
    "kind", [DeviceError, LimitRefusedError, BusyError, UsageError, LaunchError]
)
def test_an_error_there_is_the_same_error_here_with_the_host(hosts, kind):
    node, own = hosts.play()
    answering(own, start={"error": "GPU 0 is lost", "type": kind.__name__})
    with pytest.raises(kind) as told:
        node.call("start")
    assert type(told.value) is kind
    assert str(told.value) == "host b: GPU 0 is lost"


def test_the_host_is_named_once(hosts):
    node, own = hosts.play()
    answering(own, prepare={"error": "host b has no interface x", "type": "LaunchError"})
    with pytest.raises(LaunchError, match=r"^host b has no interface x$"):
        node.call("prepare")


@pytest.mark.parametrize("kind", ["ChannelError", ""])
def test_an_error_of_no_known_class_is_a_launch_error(hosts, kind):
    assert not isinstance(getattr(errors, str(kind), None), errors.ZeusrunError)
    node, own = hosts.play()
    answering(own, start={"error": "what", "type": kind})
    with pytest.raises(LaunchError, match=r"^host b: what$"):
        node.call("start")


def test_answers_belong_to_their_calls_in_any_order(hosts):
    node, own = hosts.play()
    first, second = node.ask("a"), node.ask("b")
    for call in (second, first):
        own.send("answer", call=call, own=call)
    assert node.wait_for(first)["own"] == first
    assert node.wait_for(second)["own"] == second


def test_an_answer_that_is_late_is_told(hosts, monkeypatch):
    monkeypatch.setattr(remote_node, "_ANSWER_S", 0.01)
    node, _ = hosts.play()
    with pytest.raises(LaunchError, match=r"^host b has not answered for 0\.01 s$"):
        node.call("prepare")


def test_nobody_waits_for_a_lost_host(hosts, monkeypatch):
    monkeypatch.setattr(remote_node, "_ANSWER_S", 3600.0)
    node, own = hosts.play()
    call = node.ask("prepare")
    timer = threading.Timer(0.1, own.close)
    timer.start()
    with pytest.raises(LaunchError, match="host b is lost: its node launcher has ended"):
        node.wait_for(call)
    with pytest.raises(LaunchError, match="host b is lost"):
        node.call("start")
    assert node.finish().code == 1
    assert node.failed
    assert not node.is_running


def test_garbage_of_a_node_loses_the_host_and_says_why(hosts):
    node, own = hosts.play()
    own._unsent.append(b"\0\0\0\2[]")
    own.send("pong")
    wait_for(lambda: node.lost)
    assert node.lost.endswith("(the data received is not a zeusrun message)")


def test_the_first_reason_stays(hosts):
    node, own = hosts.play()
    node.mark_lost("host b is lost: it is silent")
    own.close()
    node._thread.join(30.0)
    assert node.lost == "host b is lost: it is silent"


def test_leaving_does_not_wait_for_a_disk_that_does_not_answer(hosts, monkeypatch):
    answers = threading.Event()
    monkeypatch.setattr(remote_node, "_STALE_S", 0.05)
    monkeypatch.setattr(remote_node.RemoteNode, "_take", lambda *_: answers.wait(60))
    node, _ = hosts.play()
    node.close()
    assert node._thread.is_alive()
    answers.set()
    node._thread.join()


def test_leaving_is_no_loss(hosts):
    node = hosts.serve()
    node.close()
    assert node.lost is None


# The hello


def refused(hosts, **said):
    node, _ = hosts.play(**said)
    with pytest.raises(LaunchError) as told:
        _check_hello(node, "job", [])
    return str(told.value)


@pytest.mark.parametrize("name", ["zeusrun", "torch", "Python"])
def test_another_version_is_told_with_the_host_and_both_versions(hosts, name):
    own = versions()
    text = refused(hosts, versions={**own, name: "0.0.7"})
    assert text == f"host b has {name} 0.0.7, and this host {own[name]}; install the same on all"


def test_a_host_without_torch_says_so(hosts):
    text = refused(hosts, versions={}, error="torchrun: torch is not installed for python")
    assert text == "host b: torchrun: torch is not installed for python"


def test_a_launcher_that_ends_before_its_first_message_is_told(hosts):
    node, own = hosts.play(greets=False)
    own.close()
    with pytest.raises(LaunchError, match=r"host b cannot be reached.*It needs zeusrun"):
        _check_hello(node, "job", [])


# The heartbeat


def run_on(heartbeat_s):
    return RunOn(hosts=("a", "b")).model_copy(update={"heartbeat_s": heartbeat_s})


def test_a_host_that_does_not_answer_is_lost_and_one_that_does_is_not(hosts):
    answers, (silent, _) = hosts.serve("b", 1), hosts.play("c", 2)
    assert silent.wait_for_hello(30.0)
    cluster = Cluster(run_on(3.0), (answers, silent))  # long enough for a busy machine
    cluster.watch()
    wait_for(lambda: silent.lost)
    assert silent.lost == "host c is lost: it has not answered for 3 s (run_on.heartbeat_s)"
    time.sleep(0.1)  # the other was not heard for longer, but for its answers
    cluster._ended.set()
    assert answers.lost is None


def test_a_head_that_was_stopped_first_reads_what_the_hosts_have_said(hosts, monkeypatch):
    """A wait that takes a minute for the clock is what a stopped process sees."""
    node, own = hosts.play()
    assert node.wait_for_hello(30.0)
    cluster, beats, real = Cluster(run_on(3.0), (node,)), [], time.monotonic
    late = lambda: real() + 60.0 * (len(beats) > 0)  # noqa: E731

    def wait(_):
        beats.append(real())
        return len(beats) > 3

    monkeypatch.setattr(cluster._ended, "wait", wait)
    monkeypatch.setattr(module.time, "monotonic", late)
    cluster._beat()
    assert node.lost is None
    own.send("left", why="it is late")
    own.close()
    assert wait_for(lambda: node.lost) == "host b left because it is late"


def test_a_node_that_leaves_is_lost_with_its_reason_once_its_ranks_have_ended(hosts, paths):
    node, own = hosts.play()
    own_node_started(node, own, paths)
    own.send("left", why="it heard nothing")
    pong(node, own, offset_s=0.0)
    assert node.lost is None  # its ranks may still save
    own.send("ended", exit=[0, 5.0, [], []], saved=True, copied=True)
    assert node.finish().code == 0
    assert node.lost == "host b left because it heard nothing"
    assert node.failed


def test_a_host_that_has_not_said_hello_yet_is_not_lost(hosts):
    node, _ = hosts.play()
    assert node.wait_for_hello(30.0)
    node.hello = None
    cluster = Cluster(run_on(0.05), (node,))
    cluster.watch()
    time.sleep(0.1)
    cluster._ended.set()
    assert node.lost is None


# The clock


def pong(node, own, *, offset_s, there_s=0.0, back_s=0.0):
    """Answer a ping as a node whose clock shows so much more, over a slow link."""
    before = len(node._pings)
    node.ping()
    asked = until(own, "ping")
    time.sleep(there_s)
    own_t = time.monotonic() + offset_s
    time.sleep(back_s)
    own.send("pong", t=asked["t"], own_t=own_t)
    wait_for(lambda: len(node._pings) > before)


@pytest.mark.parametrize("offset_s", [1000.0, -1000.0])
def test_the_fastest_of_several_round_trips_tells_the_difference(hosts, offset_s):
    node, own = hosts.play()
    for there_s, back_s in ((0.1, 0.0), (0.0, 0.0), (0.0, 0.1)):
        pong(node, own, offset_s=offset_s, there_s=there_s, back_s=back_s)
    t = time.monotonic()
    assert node.to_own_time(t + offset_s) == pytest.approx(t, abs=0.04)
    order = [node.to_own_time(t + offset_s - 1.0 + part / 10) for part in range(5)]
    assert order == sorted(order)


def test_no_time_is_later_than_now_and_without_a_round_trip_it_is_now(hosts):
    node, own = hosts.play()
    before_t = time.monotonic()
    assert before_t <= node.to_own_time(5.0) <= time.monotonic()
    pong(node, own, offset_s=1000.0, back_s=0.1)
    assert node.to_own_time(1e9) <= time.monotonic()


@pytest.mark.parametrize("offset_s", [pytest.param(1000, marks=pytest.mark.long), -1000])
def test_events_of_a_node_with_another_clock_lie_within_the_run_and_in_order(
    hosts, paths, offset_s, fake_torchrun
):
    """Over a link that is slow in one direction, with the real launcher in a time namespace."""
    if time.monotonic() + offset_s < 60:
        pytest.skip("this machine has just started")
    words = [
        "unshare",
        "--time",
        "--monotonic",
        str(offset_s),
        "--boottime",
        str(offset_s),
        "--fork",
    ]
    if not can_run([*words, "true"]):
        pytest.skip("a time namespace cannot be made here")
    node, _ = hosts.start(
        through=lambda reading, writing: (Relay(reading, 0.05).reading, writing),
        words=words,
        **fake_torchrun,
    )
    prepare(node, paths.run_dir.parents[2], first=0)
    measure(node)
    launched_t = time.monotonic()
    readings = node.devices[0].read()
    assert abs(readings.t - launched_t) < 30.0
    node.start(command(paths, node, "well.py", "--epoch-s", 0), paths, 5.0)
    node.wait_until_started()
    end = node.finish()
    now_t = time.monotonic()
    assert node.lost is None
    assert end.code == 0
    found = events(paths)
    times = [record["t"] for record in found if record.get("rank", 0) == 0]
    assert len(times) >= 4
    assert times == sorted(times)
    assert all(launched_t <= record["t"] <= now_t for record in found)
    assert launched_t <= end.ended_t <= now_t


def can_run(words):
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.fixture
def fake_torchrun(tmp_path):
    return {"PYTHONPATH": str(FAKE_TORCHRUN), "TMPDIR": str(temporary_folder(tmp_path))}


# What a node says of its ranks


def test_step_clocks_come_as_they_were_read(hosts):
    node, own = hosts.play()
    pong(node, own, offset_s=1000.0)
    t = time.monotonic() - 10.0
    there = StepCount(7, t + 1000.0, t + 1005.0, 224, 3, 1)
    counts = {2: [there.steps, there.first_step_t, *there.place, there.waits_s]}
    said = {"states": {"2": "running"}, "all_live": False, "oom_kills": 1, "shared": True}
    own.send("state", counts=counts, limits={}, **said)
    here = wait_for(lambda: node.counts.get(2))
    assert here == StepCount(
        7, pytest.approx(t, abs=0.05), pytest.approx(t + 5.0, abs=0.05), 224, 3, 1
    )
    assert node.counts.get(1) is None
    assert (node.states, node.all_live, node.oom_kills, node.shared) == (
        {2: "running"},
        False,
        1,
        True,
    )


def test_the_end_names_the_host_of_what_was_left(hosts, paths):
    node, own = hosts.play()
    own_node_started(node, own, paths)
    own.send("ended", exit=[1, 5.0, ["python (3)"], ["tee (4)"]], saved=False, copied=True)
    end = node.finish()
    assert (end.code, end.outlived, end.left) == (1, ("python (3) on b",), ("tee (4) on b",))
    assert node.failed


def own_node_started(node, own, paths, grace_s=5.0):
    node.start(
        Command((), {"A": "1", "KEY": "secret"}, paths.run_dir, secrets=("KEY",)), paths, grace_s
    )
    message = until(own, "start")
    own.send("answer", call=message["call"], shared_files=False)
    node.wait_until_started()
    return message


def test_secrets_go_by_pipe_and_not_by_a_socket_without_encryption(hosts, paths, monkeypatch):
    node, own = hosts.play()
    message = own_node_started(node, own, paths)
    assert (message["env"], message["own_env"]) == ({"A": "1", "KEY": "secret"}, [])
    node, own = hosts.play()
    assert node.wait_for_hello(30.0)
    monkeypatch.setattr(Channel, "is_private", property(lambda _: False))
    message = own_node_started(node, own, paths)
    assert (message["env"], message["own_env"]) == ({"A": "1"}, ["KEY"])


def test_a_stop_is_sent_once_and_never_falls(hosts, paths):
    node, own = hosts.play()
    node.stop(StopLevel.KILL)  # nothing runs yet
    own_node_started(node, own, paths)
    for level in (StopLevel.ASK, StopLevel.ASK, StopLevel.KILL, StopLevel.TERMINATE):
        node.stop(level)
    node.ask_for_stacks()
    kinds = iter(own.receive, None)
    got = []
    for message in kinds:
        if message["kind"] == "stacks":
            break
        got.append((message["kind"], message.get("level")))
    assert got == [("stop", 1), ("stop", 3)]


def test_ranks_that_do_not_end_there_lose_the_host(hosts, paths, monkeypatch):
    monkeypatch.setattr(remote_node, "_MARGIN_S", 0.05)
    node, own = hosts.play()
    own_node_started(node, own, paths, grace_s=0.05)
    assert node.is_running
    assert node.finish().code == 1
    assert node.lost == "host b is lost: its ranks did not end"


def test_nor_is_a_stop_waited_for_longer_than_the_grace(hosts, paths, monkeypatch):
    monkeypatch.setattr(remote_node, "_MARGIN_S", 0.05)
    node, own = hosts.play()
    own_node_started(node, own, paths, grace_s=0.05)
    for level in (StopLevel.NONE, StopLevel.ASK):
        node.stop(level)
    assert node._until_t == math.inf  # a script that was asked may save for long
    begun_t = time.monotonic()
    wait_for(lambda: (node.stop(StopLevel.TERMINATE), node.lost)[1])
    assert time.monotonic() - begun_t > 0.1
    assert node.lost == "host b is lost: its ranks did not end"
    assert not node.is_running


def test_of_a_host_that_is_lost_before_no_end_is_waited_for(hosts, paths):
    node, _ = hosts.play()
    node.mark_lost("host b is lost: it is silent")
    node.start(Command((), {}, paths.run_dir), paths, 3600.0)
    assert not node.is_running
    with pytest.raises(LaunchError, match="it is silent"):
        node.wait_until_started()
    assert node.ended.is_set()
    assert node.finish().code == 1


def test_a_file_that_cannot_be_copied_is_told_and_the_rest_is_copied(hosts, paths):
    node, own = hosts.play()
    own_node_started(node, own, paths)
    own.send("file", name="../trial.json", data="x")
    own.send("file", name="logs/rank1.log", data="\xff")
    wait_for(paths.rank_log(1).exists)
    assert wait_for(paths.rank_log(1).read_bytes) == b"\xff"
    assert [*node.notices] == ["../trial.json is incomplete: Invalid argument"]
    assert not (paths.run_dir.parent / "trial.json").exists()


@pytest.mark.parametrize("refused", [False, True])
def test_a_node_removes_its_files_only_once_all_are_written_here(hosts, paths, refused):
    """Such as on a full disk: then the node has the only whole copy."""
    node, own = hosts.play()
    own_node_started(node, own, paths)
    if refused:
        paths.rank_log(1).mkdir()
    own.send("file", name="logs/rank1.log", data="x")
    own.send("ended", exit=[0, 5.0, [], []], saved=False, copied=True)
    node.finish()
    assert [*node.notices] == [f"{paths.rank_log(1)} is incomplete: Is a directory"] * refused
    node.close()
    kinds = []
    while (message := own.receive()) is not None:
        kinds.append(message["kind"])
    assert ("remove" in kinds, kinds[-1]) == (not refused, "bye")


def test_each_run_begins_with_nothing_of_the_one_before(hosts, paths):
    node, own = hosts.play()
    own_node_started(node, own, paths)
    own.send("state", counts={"1": [1, 1.0, 1.0, 1, 0, 0, 0, [0.0, None]]}, states={"1": "running"}, all_live=False,
             oom_kills=2, shared=True, limits={})  # fmt: skip
    own.send("ended", exit=[0, 5.0, [], []], saved=False, copied=True)
    node.finish()
    assert node.counts.get(1) is not None
    node.start(Command((), {}, paths.run_dir), paths, 5.0)
    assert node.counts.get(1) is None
    assert (node.states, node.all_live, node.oom_kills, node.shared) == ({}, True, None, None)
    assert node.is_running
    own.send("ended", exit=[0, 5.0, [], []], saved=False, copied=True)


# The ranks of all hosts


def test_the_end_of_all_torchruns_is_a_failure_if_one_of_them_is():
    exits = [
        ProcessExit(0, 5.0, ("a (1)",)),
        ProcessExit(-9, 9.0, (), ("b (2)",)),
        ProcessExit(1, 7.0, ("c (3)",)),
    ]
    assert _join_exits(exits) == ProcessExit(1, 9.0, ("a (1)", "c (3)"), ("b (2)",))
    assert _join_exits(exits[:2]).code == -9  # zeusrun kills one that waits for one that has failed
    assert _join_exits(exits[:1]) == exits[0]


def test_what_is_unknown_on_one_host_is_unknown_of_all(hosts, paths):
    nodes = [hosts.play(name, number)[0] for number, name in ((1, "b"), (2, "c"))]
    nodes[0].ranks, nodes[1].ranks = range(1, 3), range(3, 4)
    ranks = RunningRanks(paths, range(1), nodes)
    assert ranks.world == (0, 1, 2, 3)
    nodes[0].oom_kills = 2
    ranks._oom_kills = None
    assert ranks.oom_kills() is None
    nodes[1].states = {3: "sleeping"}
    assert ranks.states == {3: "sleeping"}
    nodes[1].all_live = False
    assert not ranks.all_live()
    assert ranks.lost is None
    nodes[1].mark_lost("host c is lost")
    nodes[0].mark_lost("host b is lost")
    assert ranks.lost in {"host b is lost", "host c is lost"}


ENDS_WHEN_ASKED = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print(os.getpid(), flush=True)
time.sleep(600)
"""


def run_here(paths, text):
    """Return a torchrun of this host, which is its own rank."""
    env = {**os.environ, "ZEUSRUN_RUN_DIR": str(paths.run_dir)}
    return TorchrunProcess(Command((sys.executable, "-c", text), env, paths.run_dir), paths, 600.0)


def test_where_another_host_fails_ranks_that_live_here_are_asked_and_not_killed(hosts, paths):
    node, own = hosts.play()
    node.ranks = range(1, 2)
    own_node_started(node, own, paths)
    ranks = RunningRanks(paths, range(1), [node])
    with run_here(paths, ENDS_WHEN_ASKED) as ranks._torchrun:
        pid = wait_for(paths.torchrun_log.read_text)
        ranks.take(Started(0.0, 0, int(pid)))
        assert ranks.step(StopLevel.NONE)
        node.mark_lost("host b is lost")
        wait_for(lambda: not ranks.step(StopLevel.NONE))
    assert ranks._torchrun.exit.code == 7
    assert ranks.first_failed == 1


def test_a_host_that_still_runs_is_waited_for_once_this_one_has_ended(hosts, paths):
    node, own = hosts.play()
    node.ranks = range(1, 2)
    own_node_started(node, own, paths)
    ranks = RunningRanks(paths, range(1), [node])
    with run_here(paths, "") as ranks._torchrun:
        wait_for(lambda: ranks.step(StopLevel.NONE) and not ranks._torchrun.is_running())
        assert ranks.step(StopLevel.NONE)
        own.send("ended", exit=[0, 5.0, [], []], saved=False, copied=True)
        wait_for(lambda: not ranks.step(StopLevel.NONE))
    assert ranks.first_failed is None
