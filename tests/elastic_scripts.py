"""An elastic training of a test: what it is told, and what its ranks say that they did."""

from __future__ import annotations

import collections
import itertools
import json
import os
import random
import signal
import time

import pytest

from tests.runs import wait_for
from zeusrun.elastic.rank.board import Board
from zeusrun.sidecar.orders import STACK_SIGNAL

SAMPLES = 960
PRINTED = {"source": "stdout", "pattern": r"epoch: (?P<epoch>\d+) accuracy: (?P<accuracy>[\d.]+)"}


def elastic_job(zeusrun, script="elastic_steps.py", epochs=10, **changes):
    """Write the job file of a training that begins with two ranks."""
    given = {
        "launch": {"nproc_per_node": 2},
        "elastic": {"min": 1, "max": 4, **changes.pop("elastic", {})},
        "objective": {"max_epochs": epochs, "target": 10},
        "batch_size": {"candidates": [48], "default": 48},
        "attempts": 1,
        "policy": {"name": "fixed"},
    }
    given["launch"] |= changes.pop("launch", {})
    return zeusrun.job(script, **{**given, **changes})


def is_created(run_dir):
    """Whether the agent has created its board."""
    path = run_dir / "elastic" / "board"
    return path.exists() and path.stat().st_size > 0


class Training:
    """A submit that runs; ``orders`` go to its board, as those of ``zeusrun resize``."""

    def __init__(self, zeusrun, job):
        self.zeusrun = zeusrun
        self.submit = self.start(job)
        self.run_dir = self.steps_dir = zeusrun.run_dir()
        self._wait(lambda: is_created(self.run_dir))
        self.board = Board(self.run_dir)
        self.wait_for_ranks(2)

    def start(self, job):
        return self.zeusrun.start("submit", job)

    @property
    def members(self):
        return self.board.read_generation(self.board.newest).members if self.board.newest else ()

    def is_settled(self, ranks=None):
        """Whether all members train in the newest generation, and there are so many."""
        number, members = self.board.newest, self.members
        places = [self.board.place(slot) for slot in members]
        has_begun = all(place.generation == number and place.mode for place in places)
        return has_begun and len(members) == (ranks or len(members)) > 0

    def wait_for_ranks(self, ranks=None):
        self._wait(lambda: self.is_settled(ranks))

    def _wait(self, condition):
        try:
            wait_for(lambda: condition() or self.submit.poll() is not None)
        except pytest.fail.Exception as error:
            raise AssertionError(f"{error}\n{self.log}\n{self.stacks()}") from None
        assert self.submit.poll() is None, self.shown()

    def stacks(self):
        """Return where the members are."""
        for slot in self.members:
            if (pid := self.board.place(slot).pid) > 1:  # 0 is the process group of the tests
                os.kill(pid, STACK_SIGNAL)
        time.sleep(1)
        files = [self.run_dir / "logs" / f"rank{slot}.stack" for slot in self.members]
        return "\n".join(f"{path}: {path.read_text()}" for path in files if path.exists())

    @property
    def log(self):
        return (self.run_dir / "logs" / "torchrun.log").read_text()

    def resize(self, ranks):
        self.board.order(ranks, "a user")

    def kill(self, rank, number=signal.SIGKILL):
        """Send a signal to a rank; return the process."""
        pid = self.board.place(self.members[rank]).pid
        assert pid > 1  # as in ``stacks``
        os.kill(pid, number)
        return pid

    def wait_for_steps(self, more=3):
        """Wait until rank 0 has made so many more steps."""
        head = self.board.place(self.members[0])
        until = head.steps + more
        self._wait(lambda: self.board.place(self.members[0]).steps >= until)

    def wait_for_epochs(self, more):
        """Wait until an unedited script has begun so many more epochs, or starts again."""
        before = self.board.place(0).epoch
        self._wait(lambda: not before <= self.board.place(0).epoch < before + more)

    def shown(self):
        return self.submit.communicate(timeout=300)[0]

    def end(self):
        """Wait for the end; return the exit code and what people see."""
        shown = self.shown()
        self.board.close()
        return self.submit.returncode, shown

    def end_missed(self):
        """Wait for the end without the target; return what people see."""
        code, shown = self.end()
        assert code == 4, shown
        return shown

    def steps(self):
        """Return what each process wrote of its steps, by its slot."""
        return {
            int(path.stem.removeprefix("steps")): [
                json.loads(line) for line in path.read_text().splitlines()
            ]
            for path in sorted(self.steps_dir.glob("steps*.jsonl"))
        }

    def check(self, *, kills=0):
        """Check what the ranks have written; return the number of steps.

        In each step, all have the same parameters, and together the samples of a batch. No sample
        comes twice in an epoch. A rank that is killed after its part of a step may not have
        written that.
        """
        steps, samples = collections.defaultdict(list), collections.Counter()
        for own in self.steps().values():
            assert len({step["pid"] for step in own}) <= 1
            for step in own:
                steps[step["step"]].append(step)
                samples.update((step["epoch"], sample) for sample in step["samples"])
        assert sorted(steps) == list(range(len(steps)))
        gaps = 0
        for number, of_it in steps.items():
            assert len({step["digest"] for step in of_it}) == 1, (number, of_it)
            assert len({step["ranks"] for step in of_it}) == 1, (number, of_it)
            gaps += len(of_it) != of_it[0]["ranks"]
        assert gaps <= kills
        assert set(samples.values()) == {1}
        per_epoch = collections.Counter(epoch for epoch, _ in samples)
        whole = [count for epoch, count in per_epoch.items() if epoch != max(per_epoch)]
        assert sum(SAMPLES - count for count in whole) <= kills * 48
        return len(steps)


def shake(training, seed, times):
    """Change the ranks and kill some, at random; end the training and check it."""
    chance, kills = random.Random(seed), 0
    for _ in range(times):
        ranks = len(training.members)
        if chance.random() < 0.5 and ranks > 1:
            before = training.board.newest
            training.kill(chance.randrange(ranks))
            kills += 1
            if ranks == 2:  # after another one, none would be left
                wait_for(lambda before=before: training.board.newest != before)
                training.wait_for_ranks()
        else:
            ranks = chance.randint(1, 4)
            training.resize(ranks)
            if chance.random() < 0.6:
                training.wait_for_ranks(ranks)
        if chance.random() < 0.7:
            training.wait_for_ranks()
            training.wait_for_steps(chance.randint(0, 5))
    training.resize(0)
    training.end_missed()
    assert training.check(kills=kills) > 50


def check_epochs(training):
    """Check what the ranks of an unedited script have written; return its epochs, and restarts.

    In each step, all have the same parameters. An epoch has one number of ranks, and each sample
    once; if a kill has ended it, at most once. A restart continues after a checkpoint.
    """
    epochs = collections.defaultdict(list)
    for own in training.steps().values():
        for step in own:
            epochs[step["restart"], step["epoch"]].append(step)
    trained = collections.Counter()
    for (restart, epoch), steps in epochs.items():
        samples = collections.Counter(itertools.chain(*(step["samples"] for step in steps)))
        assert set(samples.values()) == {1}, (restart, epoch)
        assert max(len(each["samples"]) for each in steps) == 48 // steps[0]["ranks"]
        assert len({step["ranks"] for step in steps}) == 1, (restart, epoch)
        assert len({(step["step"], step["digest"]) for step in steps}) == len(
            {step["step"] for step in steps}
        ), (restart, epoch)
        trained[epoch] += len(samples) == SAMPLES
    assert sorted(trained) == list(range(1, max(trained) + 1))
    assert all(trained[epoch] for epoch in range(1, max(trained)))
    restarts = {restart for restart, _ in epochs}
    for restart in restarts - {0}:
        first = min(epoch for then, epoch in epochs if then == restart)
        assert first > 1, "it has begun anew"
    return max(trained), len(restarts) - 1


def gaps_s(steps):
    """Return the longest time between two steps of each process."""
    times = {slot: [step["t"] for step in own] for slot, own in steps.items()}
    return {
        slot: max((b - a for a, b in itertools.pairwise(own)), default=0.0)
        for slot, own in times.items()
    }
