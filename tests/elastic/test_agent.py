"""The agent of an elastic training, with ranks of which a test says how far they are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.elastic_scripts import is_created
from tests.runs import wait_for
from zeusrun.elastic.rank.board import BY_EPOCHS, BY_STEPS, FIXED, Board
from zeusrun.launcher.processes.command import _AGENT, _MAIN

RANK = """
import os, sys, time
restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
path = os.path.join(os.environ["ZEUSRUN_RUN_DIR"], f"exit{os.environ['ZEUSRUN_SLOT']}.{restart}")
while not os.path.exists(path):
    time.sleep(0.01)
sys.exit(int(open(path).read()))
"""


class Run:
    """A real agent; what its ranks would write on the board, a test writes."""

    def __init__(self, folder, mode, **plan):
        self.folder, self.mode = folder, mode
        default = {"run_id": "job-1-1", "ranks": 2, "batch_size": 48, "max_restarts": 0}
        default |= {"min": 1, "max": 5, "losses": 3, "lost_by": "killed", "hang_s": 60.0}
        argv = [
            sys.executable,
            "-c",
            _MAIN.replace(_AGENT, "zeusrun.elastic.agent"),
            json.dumps(default | plan),
        ]
        env = {**os.environ, "ZEUSRUN_RUN_DIR": str(folder), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "9"}
        with (folder / "log").open("wb") as log:
            self.agent = subprocess.Popen(
                [*argv, sys.executable, "-S", "-c", RANK], env=env, stdout=log
            )
        self.wait(lambda: is_created(folder))
        self.board = Board(folder)
        self.wait(lambda: "have started" in self.log)

    @property
    def log(self):
        return (self.folder / "log").read_text()

    def wait(self, condition):
        wait_for(lambda: condition() or self.agent.poll() is not None)
        assert self.agent.poll() is None, self.log

    def pid(self, slot):
        return self.board.place(slot).pid

    def settle(self):
        """Let all members train in the newest generation."""
        for slot in self.board.members:
            place = self.board.place(slot)
            place.joins = place.has_state = place.generation = self.board.newest
            place.mode = self.mode

    def grow(self, slot):
        """Let a newcomer become a member."""
        self.wait(lambda: self.pid(slot))
        place = self.board.place(slot)
        place.mode, place.is_ready = self.mode, 1
        self.wait(lambda: slot in self.board.members)

    def kill(self, slot):
        assert self.pid(slot) > 1  # 0 is the process group of the tests
        os.kill(self.pid(slot), signal.SIGKILL)

    def exit(self, slot, code, restart=0):
        fresh = self.folder / f"fresh{slot}"
        fresh.write_text(str(code))
        fresh.rename(self.folder / f"exit{slot}.{restart}")

    def wait_for_restart(self):
        self.wait(lambda: "all ranks start again" in self.log)
        self.wait(lambda: self.pid(0))
        for slot in self.board.members:
            self.exit(slot, 0, restart=1)
        assert self.agent.wait(300) == 0


@pytest.fixture
def begin(tmp_path):
    """Start an agent; its ranks end with the test."""
    started = []

    def run(mode=BY_EPOCHS, **plan):
        started.append(Run(tmp_path, mode, **plan))
        return started[-1]

    yield run
    for each in started:
        if each.agent.poll() is None:
            each.agent.send_signal(signal.SIGCONT)
            each.agent.terminate()
            each.agent.wait(300)
        each.board.close()


def test_an_order_before_the_ranks_train_is_rounded_once_it_is_known_that_they_share_a_batch(begin):
    run = begin()
    run.board.order(5, "a user")
    run.wait(lambda: "a user wants 5" in run.log)
    run.settle()
    for slot in (2, 3):
        run.grow(slot)
        run.settle()
    assert run.board.members == (0, 1, 2, 3)
    run.board.order(3, "a user")  # the next one: nothing has been started since
    run.wait(lambda: run.board.members == (0, 1, 2))
    assert run.pid(4) == 0


def test_of_ranks_that_have_ended_at_once_the_killed_one_is_the_cause(begin):
    run = begin()
    run.settle()
    run.agent.send_signal(signal.SIGSTOP)
    run.kill(1)
    run.exit(0, 1)
    wait_for(lambda: all("Z" in stat_of(run.pid(slot)) for slot in (0, 1)))
    run.agent.send_signal(signal.SIGCONT)
    run.wait_for_restart()
    assert "all ranks start again: rank 1 was ended by SIGKILL" in run.log


def stat_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_others_that_fail_because_a_newcomer_was_killed_after_they_went_on_start_again(begin):
    run = begin()
    run.settle()
    run.board.order(3, "a user")
    run.grow(2)
    run.board.place(0).joins = run.board.newest
    run.kill(2)
    run.wait(lambda: run.board.members == (0, 1))
    run.exit(0, 1)
    run.wait_for_restart()


def test_a_newcomer_gets_the_local_rank_of_the_one_that_is_gone(begin):
    run = begin(BY_STEPS, ranks=3)
    run.settle()
    run.kill(1)
    run.wait(lambda: run.board.members == (0, 2))
    run.settle()
    run.grow(3)
    ranks = [psutil.Process(run.pid(slot)).environ()["LOCAL_RANK"] for slot in run.board.members]
    assert ranks == ["0", "2", "1"]


def test_if_none_may_be_lost_the_run_fails_and_names_it(begin):
    run = begin(BY_STEPS, losses=0, ranks=3)
    run.settle()
    run.kill(2)
    assert run.agent.wait(300) == 1
    assert (
        "rank 2 was ended by SIGKILL, and the ranks may not start again: elastic.losses allows 0"
        in run.log
    )
    assert "exitcode  : -9" in run.log


def test_a_rank_that_fails_because_of_a_lost_one_is_no_second_loss(begin):
    run = begin(BY_STEPS, losses=1, ranks=3)
    run.settle()
    run.kill(2)
    run.wait(lambda: run.board.members == (0, 1))
    run.exit(0, 1)
    run.wait_for_restart()
    assert "all ranks start again: rank 2 was ended by SIGKILL" in run.log


def test_if_a_newcomer_dies_another_one_leaves_where_the_rest_would_not_share_the_batch(begin):
    run = begin(batch_size=4)
    run.settle()
    run.board.order(4, "a user")
    for slot in (2, 3):
        run.wait(lambda slot=slot: run.pid(slot))
        run.board.place(slot).mode = BY_EPOCHS
    run.agent.send_signal(signal.SIGSTOP)
    for slot in (2, 3):
        run.board.place(slot).is_ready = 1
    run.agent.send_signal(signal.SIGCONT)
    run.wait(lambda: run.board.members == (0, 1, 2, 3))
    run.kill(3)
    run.wait(lambda: run.board.members == (0, 1))
    wait_for(lambda: not psutil.pid_exists(run.pid(2)))


def test_ranks_start_again_where_no_number_but_the_present_one_may_be(begin):
    run = begin(ranks=4, batch_size=64, min=3)
    run.settle()
    run.board.order(3, "a user")
    run.wait(lambda: "it aims at 4" in run.log)
    run.kill(1)
    run.wait(lambda: run.log.count("4 processes have started") == 2)


def test_an_error_is_not_called_a_loss(begin):
    run = begin(BY_STEPS, losses=0)
    run.settle()
    run.exit(1, 1)
    assert run.agent.wait(300) == 1
    assert "elastic.losses" not in run.log


def test_a_newcomer_that_dies_before_the_others_have_met_it_excuses_no_failure(begin):
    run = begin()
    run.settle()
    run.board.order(3, "a user")
    run.grow(2)
    run.kill(2)
    run.wait(lambda: run.board.members == (0, 1))
    run.exit(1, 1)
    assert run.agent.wait(300) == 1


def test_ranks_that_cannot_change_start_again_with_as_many(begin):
    run = begin(FIXED)
    run.settle()
    run.board.order(3, "a user")
    run.wait(lambda: "a user wants 3" in run.log)
    run.kill(1)
    run.wait_for_restart()
    assert run.pid(2) == 0


def test_a_newcomer_that_dies_as_it_joins_is_no_loss(begin):
    run = begin(BY_STEPS, losses=0)
    run.settle()
    run.board.order(3, "a user")
    run.grow(2)
    run.exit(2, 1)
    run.wait(lambda: run.board.members == (0, 1))
    run.settle()
    for slot in (0, 1):
        run.exit(slot, 0)
    assert run.agent.wait(300) == 0


def is_lost(run, slot, *moving):
    """Let the other members live on; whether one was killed."""
    for place in moving:
        place.beats += 1
    return slot not in run.board.members


def test_a_member_that_stands_still_while_the_others_wait_for_it_to_join_is_killed(begin):
    run = begin(BY_STEPS, hang_s=0.5)
    run.settle()
    run.board.order(3, "a user")
    run.grow(2)
    moving = run.board.place(0), run.board.place(2)
    for place in moving:
        place.joins = run.board.newest
    pid = run.pid(1)
    run.wait(lambda: is_lost(run, 1, *moving))
    assert f"process 1 (pid {pid}) hangs: killing it" in run.log


@pytest.mark.parametrize("in_step", [0, 1])
def test_a_member_that_has_begun_fewer_collectives_than_another_is_killed(begin, in_step):
    run = begin(BY_STEPS, hang_s=0.5)
    run.settle()
    one, other = run.board.place(0), run.board.place(1)
    one.collectives, other.collectives, other.is_in_step = 9, 8, in_step
    run.wait(lambda: is_lost(run, 1, one, other))


def test_a_member_that_is_stopped_within_the_collective_of_all_is_killed(begin):
    run = begin(BY_STEPS, hang_s=0.5)
    run.settle()
    one, other = run.board.place(0), run.board.place(1)
    one.collectives = other.collectives = 9
    run.wait(lambda: is_lost(run, 0, other))
    assert "process 1" not in run.log


def test_where_the_training_was_to_end_a_killed_rank_does_not_start_it_again(begin):
    run = begin()
    run.settle()
    run.board.order(0, "a user")
    run.wait(lambda: run.board.members == () and "a user wants 0" in run.log)
    run.kill(1)
    assert run.agent.wait(300) == 0
    assert run.board.members == ()
