"""Elastic trainings on two hosts: ranks come and go on both, and hosts are lost."""

from __future__ import annotations

import pytest

from tests.elastic_scripts import elastic_job, is_created
from tests.pairs import open_pair
from tests.runs import wait_for
from zeusrun.elastic.rank.board import Board

pytestmark = pytest.mark.torchrun


@pytest.fixture
def pair(zeusrun):
    """Two hosts that share all files."""
    with open_pair(zeusrun) as pair:
        yield pair


class Training:
    """A training on both hosts; the test sees the board of the head."""

    def __init__(self, pair, **changes):
        self.pair = pair
        section = {"hosts": ["a", "b"], "fan_out": pair.fan_out, **changes.pop("run_on", {})}
        launch = {"nproc_per_node": 1, **changes.pop("launch", {})}
        job = elastic_job(pair.zeusrun, run_on=section, launch=launch, **changes)
        self.submit = pair.start("submit", job)
        self.run_dir = pair.zeusrun.run_dir()
        self.wait(lambda: is_created(self.run_dir))
        self.board = Board(self.run_dir)

    def wait(self, condition, what=""):
        def done():
            return condition() or self.submit.poll() is not None

        wait_for(done, 60, what=lambda: f"{what}: {self.log}")
        assert self.submit.poll() is None, self.pair.seen(self.submit)

    @property
    def log(self):
        logs = sorted((self.run_dir / "logs").glob("torchrun*.log"))
        return "\n".join(f"{path.name}: {path.read_text()}" for path in logs)

    def wait_for_ranks(self, ranks):
        def has():
            members, number = self.board.members, self.board.newest
            places = [self.board.place(slot) for slot in members]
            return len(members) == ranks and all(
                each.generation == number and each.mode for each in places
            )

        self.wait(has, f"{ranks} ranks")

    def wait_for_steps(self, more=5):
        head = self.board.place(self.board.members[0])
        until = head.steps + more
        self.wait(lambda: head.steps >= until, f"{until} steps")


def test_ranks_come_and_go_on_two_hosts(pair):
    training = Training(pair, epochs=5000, args=["--pause-s", "0.05"])
    training.wait_for_ranks(2)
    training.wait_for_steps()
    training.board.order(1, "a user")
    training.wait_for_ranks(1)
    training.wait_for_steps()
    training.board.order(3, "a user")
    training.wait_for_ranks(3)
    training.wait_for_steps()
    training.board.order(0, "a user")
    code, trial, seen = pair.end(training.submit)
    print(seen, training.log)
    assert code == 4
    assert trial == 1
