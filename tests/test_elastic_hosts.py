"""Elastic trainings on two hosts: ranks come and go on both, and hosts are lost."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack

import psutil
import pytest

from tests.elastic_scripts import PRINTED, Training, check_epochs, elastic_job, shake
from tests.pairs import open_pair
from tests.runs import wait_for

pytestmark = pytest.mark.torchrun


@pytest.fixture
def begin(zeusrun):
    """Start a training on two hosts, by default each with a ``ZEUSRUN_HOME`` on its own disk."""
    with ExitStack() as stack:

        def run(epochs=5000, args=("--pause-s", "0.05"), shared_files=False, **changes):
            pair = stack.enter_context(open_pair(zeusrun, shared_files=shared_files))
            training = OnHosts(pair, epochs=epochs, args=[*args], **changes)
            stack.callback(training.board.close)
            return training

        yield run


class OnHosts(Training):
    """A training on hosts ``a`` and ``b`` that begins with a rank on each."""

    def __init__(self, pair, args, **changes):
        self.pair = pair
        folder = pair.zeusrun.folder / "steps"
        folder.mkdir()
        job = elastic_job(
            pair.zeusrun,
            run_on={"hosts": ["a", "b"], "fan_out": pair.fan_out, **changes.pop("run_on", {})},
            launch={"nproc_per_node": 1, **changes.pop("launch", {})},
            args=[*args, "--folder", str(folder)],
            **changes,
        )
        super().__init__(pair.zeusrun, job)
        self.steps_dir = folder

    def start(self, job):
        return self.pair.start("submit", job)

    def shown(self):
        self.submit.wait(300)
        return self.pair.seen(self.submit)

    @property
    def log(self):
        logs = sorted((self.run_dir / "logs").glob("torchrun*.log"))
        return "\n".join(path.read_text() for path in logs)

    def pids(self):
        """Return the process of each member."""
        return [self.board.place(slot).pid for slot in self.members]

    def on_b(self):
        """Return the ranks that are on ``b``."""
        there = set(self.pair.b.pids())
        return [rank for rank, pid in enumerate(self.pids()) if pid in there]


def test_ranks_come_and_go_on_both_hosts_and_those_that_stay_keep_their_process(begin):
    training = begin()
    (first, _), on_b = training.pids(), training.on_b()
    assert on_b == [1]
    training.resize(1)
    training.wait_for_ranks(1)
    training.wait_for_steps()
    training.resize(4)
    training.wait_for_ranks(4)
    training.wait_for_steps()
    assert training.pids()[0] == first
    assert len(training.on_b()) == 2
    training.kill(training.on_b()[0])
    wait_for(lambda: "a lost rank is replaced" in training.log or "SIGKILL" in training.log)
    training.wait_for_ranks(4)
    training.wait_for_steps()
    training.resize(0)
    shown = training.end_missed()
    assert training.check(kills=1) > 20
    (trial,) = training.zeusrun.history()
    assert (trial["status"], trial["host_count"]) == ("CANCELLED", 2)
    sizes = [change[2] for change in trial["world_sizes"]]
    assert sizes[:2] == [2, 1]
    assert 4 in sizes
    joules = [share[2] for share in trial["hosts"]]
    assert sum(joules) == pytest.approx(trial["energy_j"], rel=0.05)
    assert all(joules)
    assert "was ended by SIGKILL" in shown
    training.pair.check_that_b_is_empty()


@pytest.mark.long
def test_if_the_first_host_loses_its_rank_the_others_and_their_order_go_on(begin):
    """Rank 0 is then on another host: its announcements reach all before they are due."""
    training = begin()
    stays = training.pids()[1]
    training.kill(0)
    wait_for(lambda: training.pids()[:1] == [stays])
    training.wait_for_ranks(2)
    for ranks in (4, 2, 3, 1):
        training.resize(ranks)
        training.wait_for_ranks(ranks)
        training.wait_for_steps()
        assert training.pids()[0] == stays
    training.resize(0)
    training.end_missed()
    training.check(kills=1)
    assert [change[2] for change in training.zeusrun.history()[0]["world_sizes"]][-1] == 1


@pytest.mark.long
@pytest.mark.parametrize("how", ["launcher", "agent", "host", "cable"])
def test_a_host_that_is_lost_is_so_many_lost_ranks(begin, how):
    training = begin(run_on={"heartbeat_s": 4}, elastic={"max": 2})
    pair, (first, _) = training.pair, training.pids()
    training.wait_for_steps()
    if how == "launcher":
        os.kill(pair.launcher_of_b(), signal.SIGKILL)
    elif how == "agent":
        psutil.Process(training.pids()[1]).parent().kill()
    elif how == "host":
        pair.b.kill()
    else:
        pair.hosts.cut()
    training.wait_for_ranks(1)
    training.wait_for_steps(30)
    assert training.pids() == [first]
    training.resize(0)
    shown = training.end_missed()
    training.check(kills=1)
    assert ": rank 1 is lost with host b" in " ".join(shown.split())
    (trial,) = training.zeusrun.history()
    assert trial["status"] == "CANCELLED"
    assert (trial["energy_j"] is None) == (how != "agent")  # only its ranks are lost then
    assert "host b is lost" in " ".join(trial["warnings"])
    pair.wait_until_b_is_empty()


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_happens_to_the_ranks_of_two_hosts_the_training_is_whole(begin, seed):
    training = begin(args=["--pause-s", "0.02"], elastic={"losses": 1000})
    shake(training, seed, 40)
    training.pair.check_that_b_is_empty()


@pytest.mark.long
def test_an_unedited_script_changes_its_ranks_on_both_hosts(begin):
    args = ["--share", "${local_batch_size}", "--epochs", "5000", "--pause-s", "0.05"]
    training = begin(script="elastic_epochs.py", args=args, metrics=PRINTED)
    for ranks in (3, 1, 2):
        training.resize(ranks)
        training.wait_for_ranks(ranks)
        training.wait_for_epochs(2)
    training.resize(0)
    training.end_missed()
    epochs, restarts = check_epochs(training)
    assert (epochs > 5, restarts) == (True, 0)


@pytest.mark.long
def test_where_a_lost_rank_restarts_all_they_start_on_both_hosts(begin):
    args = ["--batch-size", "${batch_size}", "--checkpoint", "${checkpoint_dir}/last.pt"]
    training = begin(20, args, True, script="elastic_epochs.py", metrics=PRINTED)
    wait_for(lambda: training.board.place(0).epoch > 3)
    training.kill(1)
    training.end_missed()
    (trial,) = training.zeusrun.history()
    assert trial["epochs"] == 20
    assert "the ranks were restarted once" in " ".join(trial["warnings"])
    assert "2 processes have started" in training.log.partition("start again")[2]


@pytest.mark.long
def test_a_killed_head_ends_the_ranks_of_both_hosts(begin):
    training = begin()
    training.wait_for_steps()
    os.killpg(training.submit.pid, signal.SIGKILL)
    training.submit.wait(60)
    training.pair.wait_until_b_is_empty()
