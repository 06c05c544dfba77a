"""Whether a training has stalled, over made-up step clocks; and how it is said."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from zeusrun.launcher.supervision.hang import (
    NO_PAUSES,
    Pauses,
    Stall,
    begin_again,
    describe_stall,
    find_stall,
    find_unusual_pause,
    watch_pauses,
)

AFTER_S = 60.0
LOOK_S = 0.1


@dataclass
class Training:
    """A training looked at ten times a second, that notes when it first counts as stalled."""

    after_s: float = AFTER_S
    now_t: float = 1000.0
    steps: dict[int, int] = field(default_factory=dict)
    epochs: int = 0
    pauses: Pauses = NO_PAUSES
    told: Stall | None = None

    def look(self):
        self.pauses = watch_pauses(self.pauses, self.now_t, self.steps, self.epochs)
        self.told = self.told or find_stall(self.pauses, self.after_s)

    def stand(self, seconds):
        """Let time pass in which no rank takes a step."""
        until_t = self.now_t + seconds
        while self.now_t < until_t - LOOK_S / 2:
            self.now_t += LOOK_S
            self.look()

    def train(self, steps, step_s=0.2, ranks=(0, 1)):
        for _ in range(steps):
            self.stand(step_s)
            for rank in ranks:
                self.steps[rank] = self.steps.get(rank, 0) + 1
            self.look()
        return self

    def epoch(self, steps=50, step_s=0.2, evaluation_s=0.0, save_s=0.0):
        self.train(steps, step_s)
        self.stand(evaluation_s)
        self.epochs += 1
        self.stand(save_s)
        return self


@pytest.fixture
def training():
    """One that has looked once before anything was counted, and knows its epochs."""
    training = Training()
    training.look()
    return training


def test_a_training_that_stands_for_longer_than_after_s_has_stalled(training):
    training.epoch().train(10)
    training.stand(AFTER_S - 1)
    assert training.told is None
    training.stand(2)
    assert training.told.ranks == (0, 1)
    assert training.told.standing_s == pytest.approx(AFTER_S, abs=0.3)
    assert training.told.longest_s == pytest.approx(0.2, abs=0.15)


def test_nothing_is_a_stall_before_the_first_step(training):
    training.stand(7200.0)
    assert training.told is None


@pytest.mark.parametrize("step_s", [8.0, 45.0])
def test_steps_that_take_long_have_ten_times_as_long(training, step_s):
    training.epoch(20, step_s).train(5, step_s)
    training.stand(9.9 * step_s)
    assert training.told is None
    training.stand(max(AFTER_S, 10.2 * step_s) - 9.9 * step_s + 1)
    assert training.told is not None


def test_a_loader_that_comes_in_bursts_is_usual(training):
    for _ in range(4):
        for _ in range(5):
            training.train(30, 0.1)
            training.stand(20.0)
        training.epochs += 1
    training.train(1)
    training.stand(150.0)
    assert training.told is None
    training.stand(60.0)
    assert training.told is not None


def test_an_evaluation_may_take_ten_times_after_s_while_its_length_is_unknown(training):
    training.train(50)
    training.stand(9.9 * AFTER_S)
    assert training.told is None
    training.stand(0.2 * AFTER_S)
    assert training.told is not None


def test_what_follows_the_first_report_may_take_as_long_as_what_goes_before_it(training):
    """A checkpoint, say: as a pause, evaluation and checkpoint are one."""
    training.epoch(evaluation_s=300.0, save_s=90.0)
    training.train(50)
    assert training.told is None
    assert training.pauses.ranks[0].longest_s == pytest.approx(390.0, abs=0.5)
    training.stand(3800.0)
    assert training.told is None
    training.stand(200.0)
    assert training.told is not None


def test_a_step_seen_together_with_the_first_report_may_have_been_before_it(training):
    training.train(50)
    training.steps = {0: 51, 1: 51}
    training.epochs = 1
    training.look()
    training.stand(300.0)
    assert training.told is None


def test_an_evaluation_as_long_as_usual_is_no_stall(training):
    for _ in range(5):
        training.epoch(evaluation_s=120.0)
    assert training.told is None


def test_a_rank_that_stands_alone_is_told_alone(training):
    training.epoch().train(10)
    training.train(400, ranks=[0])
    assert training.told.ranks == (1,)


def test_a_rank_that_is_ahead_stands_with_the_one_it_waits_for(training):
    training.epoch().train(10)
    training.train(1, ranks=[0])
    training.stand(AFTER_S + 1)
    assert training.told.ranks == (0, 1)


def test_a_rank_that_never_takes_a_step_is_not_waited_for(training):
    training.epoch().train(1000, ranks=[0, 1])
    assert set(training.pauses.ranks) == {0, 1}
    assert training.told is None


def test_a_restart_takes_as_long_as_it_takes_though_the_clock_goes_on(training):
    training.epoch().train(10)
    training.pauses = begin_again(training.pauses)
    training.stand(3600.0)
    assert training.told is None
    training.train(10)
    training.stand(AFTER_S - 1)
    assert training.told is None
    training.stand(2)
    assert training.told.longest_s < 1.0  # the restart is no pause between two steps


def test_a_clock_that_had_counted_before_the_launch_is_watched_from_its_next_step():
    training = Training(steps={0: 500, 1: 500}, epochs=3)
    training.stand(3600.0)
    assert training.told is None
    training.train(5)
    assert training.pauses.ranks[0].longest_s < 1.0


@pytest.mark.parametrize("gap_s", [30.0, 3600.0, 1e6])
def test_a_time_in_which_nobody_looked_is_no_stall_and_no_usual_pause(training, gap_s):
    training.epoch().train(10)
    training.now_t += gap_s
    training.look()
    training.stand(AFTER_S - 3)
    assert training.told is None
    training.train(1)
    training.stand(AFTER_S - 1)
    training.train(1)
    training.now_t += gap_s
    training.train(10)
    assert training.pauses.ranks[0].longest_s <= AFTER_S


def test_a_pause_that_was_told_of_is_usual_from_then_on(training):
    training.epoch().train(10)
    training.stand(AFTER_S + 1)
    assert training.told is not None
    training.train(10)
    training.told = None
    training.stand(9 * AFTER_S)
    assert training.told is None


def test_places_are_told_by_rank_and_alike_ones_together():
    wait, read = "in all_reduce, train.py:33", "in read, data.py:7"
    stall = Stall((0, 1, 2, 3), 62.3, 0.44)
    assert describe_stall(stall, {0: wait, 1: wait, 2: read, 3: wait}) == (
        "the training has stalled: no optimizer step for 62 s, after pauses of at most 0.4 s; "
        "ranks 0-1, 3 are in all_reduce, train.py:33; rank 2 is in read, data.py:7"
    )
    assert "no optimizer step on rank 1 for 62 s" in describe_stall(
        Stall((1,), 62.3, 0.44), {0: wait, 1: read}
    )


def test_a_pause_that_is_longer_than_usual_is_known_before_it_is_a_stall(training):
    assert find_unusual_pause(training.pauses) is None
    training.epoch()
    assert find_unusual_pause(training.pauses) is None
    training.stand(40.0)
    assert training.told is None
    assert find_unusual_pause(training.pauses) == pytest.approx(40.0, abs=0.3)
