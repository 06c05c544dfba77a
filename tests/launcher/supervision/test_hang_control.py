"""What is done about a stall, over real step clocks and a made-up time; nobody is there to ask."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.factories import build_trial as trial
from tests.launcher.values import LAUNCHED
from zeusrun.launcher.rundir.layout import create_run
from zeusrun.launcher.supervision.hang import StallControl
from zeusrun.launcher.supervision.ranks import RankProcesses
from zeusrun.metrics.progress import Ranks
from zeusrun.sidecar.step_clock import StepClock


class Training:
    """A trial with two ranks that take steps of 0.1 s, and what was said of it."""

    def __init__(self, home, *, instrument=True, **stall):
        self.paths = create_run(home, "job", "job-1-1")
        spec = SimpleNamespace(
            instrument=instrument,
            stall=SimpleNamespace(**{"after_s": 60.0, "action": "report", **stall}),
            launch=SimpleNamespace(max_restarts=1),
        )
        self.warned, self.noted = [], []
        self.control = StallControl(
            spec,
            trial(),
            self.paths,
            self.warned.append,
            self.noted.append,
            ranks=RankProcesses(self.paths.run_dir),
        )
        self.progress = LAUNCHED
        self.stopping = False
        self.stand(0.1)
        self.clocks = [StepClock(self.paths.rank_clock(rank)) for rank in range(2)]
        self.train(10)
        self.progress = replace(self.progress, epochs=1)
        self.train(10)

    def stand(self, seconds):
        for _ in range(round(seconds / 0.1)):
            self.progress = replace(self.progress, now_t=self.progress.now_t + 0.1)
            self.control.advance(self.progress, stopping=self.stopping)

    def train(self, steps):
        for _ in range(steps):
            for clock in self.clocks:
                clock.tick()
            self.stand(0.1)


@pytest.fixture
def start(tmp_path):
    return lambda **changes: Training(tmp_path, **changes)


def test_a_stall_is_told_once_and_its_end_is_noted(start):
    training = start()
    training.stand(300.0)
    (told,) = training.warned
    assert "no optimizer step for 60 s" in told
    assert "ranks 0-1 are at an unknown place" in told
    assert training.noted == []
    training.train(5)
    assert training.noted == ["the training goes on by itself after 300 s"]
    training.train(100)
    assert len(training.warned) == len(training.noted) == 1


def test_another_stall_is_told_again_behind_the_first(start):
    training = start()
    training.stand(70.0)
    training.train(5)
    training.stand(800.0)
    assert len(training.warned) == 2
    assert training.paths.stacks.read_text().count("the training has stalled") == 2


@pytest.mark.parametrize("changes", [{"action": "off"}, {"instrument": False}])
def test_nothing_is_looked_for_where_that_is_not_wanted_or_no_step_is_seen(start, changes):
    training = start(**changes)
    training.stand(700.0)
    assert training.warned == []


@pytest.mark.parametrize(
    "ending",
    [{"epochs": 5}, {"ranks": Ranks(2, exit_codes={1: 0})}, {"stopping": True}],
    ids=lambda e: next(iter(e)),
)
def test_a_training_that_is_ending_has_not_stalled(start, ending):
    training = start()
    training.stopping = ending.pop("stopping", False)
    training.progress = replace(training.progress, **ending)
    training.stand(700.0)
    assert (training.warned, training.noted) == ([], [])


def test_a_stall_that_is_told_to_stop_does_not_go_on_by_itself(start):
    training = start()
    training.stand(70.0)
    training.stopping = True
    training.stand(10.0)
    assert training.noted == []


def test_ranks_that_are_unknown_cannot_be_restarted_and_that_is_said(start):
    training = start(action="restart")
    training.stand(300.0)
    (told,) = training.warned
    assert told.endswith("their processes are unknown")
    assert training.control.failure() is None


def test_stacks_that_cannot_be_kept_are_told_of(start):
    training = start()
    training.paths.stacks.mkdir()
    training.stand(70.0)
    (told,) = training.warned
    assert "The stacks could not be written: " in told
