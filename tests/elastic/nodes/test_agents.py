"""The agents of two hosts, with ranks of which a test says how far they are."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil
import pytest

from tests.elastic.test_agent import RANK
from tests.elastic_scripts import is_created
from tests.runs import wait_for
from zeusrun.elastic.agent import Agent
from zeusrun.elastic.nodes.head import HeadAgent, RemoteHost
from zeusrun.elastic.nodes.link import Link, Replica, sign
from zeusrun.elastic.nodes.node import NodeAgent
from zeusrun.elastic.plan import Plan
from zeusrun.elastic.processes import LocalHost
from zeusrun.elastic.rank.board import BY_EPOCHS, BY_STEPS, HOST_LOST, Board, Generation
from zeusrun.launcher.processes.command import _AGENT, _MAIN
from zeusrun.sidecar.orders import AGENT_TOKEN

TOKEN = "sesame"


class Run:
    """Two real agents on this machine; what their ranks would write on a board, a test writes."""

    def __init__(self, folder, before=lambda _port: None, **plan):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        default = {"run_id": "job-1-1", "ranks": 2, "batch_size": 48, "max_restarts": 0}
        default |= {"min": 1, "max": 4, "losses": 9, "lost_by": "killed", "hang_s": 60.0}
        default |= {"hosts": 2, "own_ranks": 1, "endpoint": f"127.0.0.1:{self.port}"}
        self.plan = {**default, "address": "127.0.0.1", "silent_s": 60.0, **plan}
        self.folders = [folder / "a", folder / "b"]
        for each in self.folders:
            each.mkdir()
        self.agents, self.boards = [self.start(0)], []
        before(self.port)
        self.agents.append(self.start(1))
        for each in self.folders:
            self.wait(lambda each=each: is_created(each))
            self.boards.append(Board(each))
        self.head, self.other = self.boards
        self.wait(lambda: "have started" in self.log)
        self.wait(lambda: self.head.place(1).pid)

    def start(self, number, token=TOKEN):
        plan = json.dumps({**self.plan, "number": number})
        argv = [sys.executable, "-c", _MAIN.replace(_AGENT, "zeusrun.elastic.nodes.agent"), plan]
        env = {**os.environ, "ZEUSRUN_RUN_DIR": str(self.folders[number])}
        env |= {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "9", AGENT_TOKEN: token}
        with (self.folders[number] / "log").open("ab") as log:
            rank = [sys.executable, "-S", "-c", RANK]
            return subprocess.Popen([*argv, *rank], env=env, stdout=log)

    @property
    def log(self):
        return (self.folders[0] / "log").read_text()

    def wait(self, condition):
        wait_for(lambda: condition() or self.agents[0].poll() is not None)
        assert self.agents[0].poll() is None, self.log

    def board_of(self, slot):
        """Return the board to which a process writes: that of its host."""
        pid = self.head.place(slot).pid
        agent = psutil.Process(pid).ppid()
        return self.boards[[each.pid for each in self.agents].index(agent)]

    def settle(self):
        """Let all members train in the newest generation, and wait until the head sees it."""
        newest = self.head.newest
        for slot in self.head.members:
            place = self.board_of(slot).place(slot)
            place.joins = place.has_state = place.generation = newest
            place.mode = BY_STEPS
        places = [self.head.place(slot) for slot in self.head.members]
        self.wait(lambda: all(each.generation == newest for each in places))

    def grow(self, slot):
        """Let a newcomer become a member."""
        self.wait(lambda: self.head.place(slot).pid)
        place = self.board_of(slot).place(slot)
        place.mode, place.is_ready = BY_STEPS, 1
        self.wait(lambda: slot in self.head.members)

    def exit(self, slot, code, restart=0):
        folder = self.folders[self.boards.index(self.board_of(slot))]
        fresh = folder / f"fresh{slot}"
        fresh.write_text(str(code))
        fresh.rename(folder / f"exit{slot}.{restart}")

    def close(self):
        for each in self.agents:
            if each.poll() is None:
                each.send_signal(signal.SIGCONT)
                each.terminate()
            each.wait(300)
        for each in self.boards:
            each.close()


@pytest.fixture
def begin(tmp_path):
    """Start two agents; they end with the test."""
    started = []

    def run(**plan):
        started.append(Run(tmp_path, **plan))
        return started[-1]

    yield run
    for each in started:
        each.close()


def test_each_board_is_a_copy_and_both_agents_end_with_the_ranks(begin):
    run = begin()
    assert run.board_of(0) is run.head
    assert run.board_of(1) is run.other
    run.settle()
    run.other.place(1).steps = 7
    run.head.place(0).steps = 8
    run.head.write_loader(2, 48, 24)
    run.other.decide(1, stops=True)
    run.wait(lambda: (run.head.place(1).steps, run.other.place(0).steps) == (7, 8))
    run.wait(lambda: run.other.read_loader(2) == (48, 24) and run.head.decision == (1, 1))
    assert run.other.read_generation(1).members == (0, 1)
    for slot in (0, 1):
        run.exit(slot, 0)
    assert [each.wait(60) for each in run.agents] == [0, 0]


def test_an_announcement_returns_once_all_hosts_know_it(begin):
    run = begin()
    run.settle()
    run.agents[1].send_signal(signal.SIGSTOP)
    announcing = threading.Thread(target=run.head.announce, args=(2, 9))
    announcing.start()
    announcing.join(0.3)
    assert announcing.is_alive()
    run.agents[1].send_signal(signal.SIGCONT)
    announcing.join(60)
    assert run.other.switch == (2, 9)


def test_an_order_of_a_rank_on_another_host_is_followed_and_ranks_are_spread(begin):
    run = begin()
    run.settle()
    run.other.order(4, "the schedule")
    run.wait(lambda: "the schedule wants 4: it aims at 4" in run.log)
    for slot in (2, 3):
        run.grow(slot)
        run.settle()
    hosts = [run.board_of(slot) is run.other for slot in run.head.members]
    assert sorted(hosts) == [False, False, True, True]
    variables = psutil.Process(run.head.place(3).pid).environ()
    assert (variables["LOCAL_RANK"], variables["WORLD_SIZE"]) == ("1", "4")
    assert AGENT_TOKEN not in variables


def test_a_rank_that_is_killed_on_another_host_is_replaced(begin):
    run = begin()
    run.settle()
    os.kill(run.head.place(1).pid, signal.SIGKILL)
    run.wait(lambda: run.head.members == (0,))
    assert "rank 1 was ended by SIGKILL" in run.head.read_generation(run.head.newest).why
    run.settle()
    run.grow(2)
    assert run.board_of(2) is run.other


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_host_costs_its_ranks_and_the_others_replace_as_many_as_they_may(begin, how):
    run = begin(silent_s=1.0)
    run.settle()
    lost, pid = run.agents[1], run.head.place(1).pid
    lost.send_signal(how)
    run.wait(lambda: run.head.members == (0,))
    why = run.head.read_generation(run.head.newest).why
    assert why == f"rank 1 is lost with host {socket.gethostname()}"
    assert run.head.place(1).ended == HOST_LOST
    if how == signal.SIGSTOP:
        lost.send_signal(signal.SIGCONT)
        assert lost.wait(60) == 1
        wait_for(lambda: not psutil.pid_exists(pid))
    else:  # a real rank ends with its agent
        lost.wait(60)
        os.kill(pid, signal.SIGKILL)
    run.settle()
    run.head.order(4, "a user")  # the hosts that are left may have two
    run.grow(2)
    run.settle()
    assert run.board_of(2) is run.head
    assert run.head.accepted[1] == 2


def test_all_start_again_on_both_hosts(begin):
    run = begin(max_restarts=1)
    first = run.head.place(1).pid
    run.settle()
    run.exit(1, 1)
    run.wait(lambda: run.log.count("2 processes have started") == 2)
    run.wait(lambda: run.head.place(1).pid not in {0, first})
    for slot in (0, 1):
        run.exit(slot, 0, restart=1)
    assert run.agents[0].wait(60) == 0


def test_a_stop_of_one_agent_reaches_its_ranks(begin):
    run = begin()
    run.settle()
    run.agents[0].terminate()
    assert run.agents[0].wait(60) == 1
    assert run.agents[1].wait(60) == 1


def test_who_does_not_know_the_token_is_refused_and_ends_nothing(begin):
    def disturb(port):
        stranger = Link(connect(port))
        hello = stranger.wait_for_one(30)
        proof = sign("wrong", hello["nonce"])
        said = {"proof": proof, "nonce": "1", "number": 1, "name": "x", "ranks": 1, "most": 1}
        stranger.send("hello", **said, address="127.0.0.1")
        assert stranger.wait_for_one(30) is None
        assert not stranger.is_open
        stranger.close()
        with connect(port) as noise:
            noise.sendall(b"GET / HTTP/1.1\r\n\r\n")
            noise.settimeout(30)
            while noise.recv(4096):
                pass

    run = begin(before=disturb)
    run.settle()
    assert run.head.members == (0, 1)
    with pytest.raises(ConnectionRefusedError):  # once all are there, nobody else is let in
        socket.create_connection(("127.0.0.1", run.port))


def connect(port):
    """Connect to the agent of host 0, once it listens."""

    def tried():
        with suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port))
        return None

    return wait_for(tried)


def test_a_port_that_is_taken_ends_the_agents_in_words(tmp_path, capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        plan = Plan("job-1-1", 1, 64, 0, 1, 8, 3, "killed", 60.0, hosts=2, endpoint=endpoint)
        assert HeadAgent(plan, LocalHost(plan, tmp_path, [], set()), tmp_path, TOKEN).run() == 1
    assert f"the other hosts cannot connect to {endpoint}" in capfd.readouterr().out


def test_a_host_that_is_lost_leaves_too_few_places_to_start_again(begin):
    run = begin(ranks=4, own_ranks=2, min=3, max_restarts=1)
    run.wait(lambda: run.head.place(3).pid)
    run.settle()
    run.agents[1].kill()
    assert run.agents[0].wait(60) == 1
    assert "no room for 3 ranks (elastic.min)" in run.log


def test_ranks_that_start_again_on_fewer_hosts_share_the_batch_evenly(tmp_path):
    plan = Plan("job-1-1", 8, 64, 0, 1, 8, 3, "killed", 60.0, own_ranks=3)
    agent = Agent(plan, LocalHost(plan, tmp_path, [], set()), tmp_path)
    agent._placement.hosts[0].most = 3
    agent._trained = (0,)
    agent._board.place(0).mode = BY_EPOCHS
    assert agent._aim == 2


def test_a_host_knows_what_the_head_has_seen_before_the_next_generation(tmp_path):
    plan = Plan("job-1-1", 1, 64, 0, 1, 8, 3, "killed", 60.0, hosts=2, endpoint="127.0.0.1:0")
    agent = HeadAgent(plan, LocalHost(plan, tmp_path, [], set()), tmp_path, TOKEN)
    ours, theirs = map(Link, socket.socketpair())
    hello = {"number": 1, "name": "b", "ranks": 1, "most": 1, "address": "b"}
    agent._others[1] = RemoteHost(ours, Replica(agent._board), hello)
    agent._members = (0,)
    agent._board.place(0).generation = 7
    agent._announce(Generation(8, (0,)))
    ours.flush(30)
    assert [each["kind"] for each in theirs.exchange()] == ["board", "generation"]
    for each in (ours, theirs):
        each.close()


def test_the_last_word_of_the_head_counts_although_it_hangs_up(tmp_path):
    plan = Plan("job-1-1", 1, 64, 0, 1, 8, 3, "killed", 60.0, number=1, hosts=2)
    ours, theirs = map(Link, socket.socketpair())
    theirs.send("bye", code=0)
    theirs.flush(30)
    theirs.close()
    assert NodeAgent(plan, LocalHost(plan, tmp_path, [], set()), tmp_path, ours).run() == 0


def test_a_full_disk_of_a_host_ends_its_agent_in_words(tmp_path, capfd):
    plan = Plan("job-1-1", 1, 64, 0, 1, 8, 3, "killed", 60.0, number=1, hosts=2)
    ours, theirs = map(Link, socket.socketpair())
    agent = NodeAgent(plan, LocalHost(plan, tmp_path, [], set()), tmp_path, ours)
    (tmp_path / "elastic" / "3.json").mkdir()  # nothing can be written there
    theirs.send("generation", number=3, members=[0])
    theirs.send("generation", number=3, members=[0])
    theirs.send("start", slot=5, restart=0, variables={})  # too late
    theirs.flush(30)
    assert agent.run() == 1
    assert not agent._board.place(5).pid
    assert "this host cannot go on" in capfd.readouterr().out
    theirs.close()


def test_who_was_stopped_itself_reads_before_it_gives_up_the_other_end(monkeypatch):
    now_t = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_t)
    own, other = socket.socketpair()
    with own, other:
        link = Link(own)
        for seconds, silent_s in ((0.0, 0.0), (4.0, 4.0), (3600.0, 0.0), (4.0, 4.0)):
            now_t += seconds
            link.exchange()
            assert link.silent_s == silent_s
