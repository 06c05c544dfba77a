"""What is said of the changes of the ranks, and of a schedule that had no effect."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from zeusrun.elastic.changes import Changes, find_late
from zeusrun.elastic.rank.board import Board, Generation
from zeusrun.elastic.section import Elastic
from zeusrun.metrics.seen import Ranks
from zeusrun.sidecar.events import Regrouped, Started
from zeusrun.trial.values import WorldChange


class Run:
    """Remembers what is said of a run, and how it ended."""

    def __init__(self, code=0):
        self.notes, self.warned, self.ends = [], [], []
        self.messages = SimpleNamespace(note=self.notes.append, warn=self.warned.append)
        self.control = SimpleNamespace(take_end=self.ends.append)
        self.ranks = SimpleNamespace(exit=SimpleNamespace(code=code))


@pytest.fixture
def board(tmp_path):
    with contextlib.closing(Board(tmp_path, create=True)) as board:
        yield board


def progress(*changes, steps=100):
    return SimpleNamespace(steps=steps, ranks=Ranks(changes=changes))


def sizes(*changes):
    return [WorldChange(float(step), 0, ranks, step=step) for step, ranks in changes]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            Regrouped(100.0, 2, (0, 1), "a user wants 2", 97.1, 0.0652, 1, 840),
            "1 → 2 ranks in 2.9 s, the others paused 65 ms, step 840: a user wants 2",
        ),
        (
            Regrouped(100.0, 3, (0,), "rank 1 was ended by SIGKILL", 99.9, 1.04, 2, 9),
            "2 → 1 ranks in 100 ms, the others paused 1.0 s, step 9: rank 1 was ended by SIGKILL",
        ),
        (
            Regrouped(100.0, 4, (0, 1), "all ranks start again: rank 1 died", 28.0),
            "2 ranks in 72 s, step 0: all ranks start again: rank 1 died",
        ),
        (Regrouped(100.0, 2, (0,), "one left"), "1 rank, step 0: one left"),
        (Regrouped(1.0, 2, (0,), "its clock is another", 9.0, 0.0, 2, 1),
         "2 → 1 ranks in 0 ms, the others paused 0 ms, step 1: its clock is another"),
    ],
)  # fmt: skip
def test_each_change_is_one_line(event, line):
    run = Run()
    changes = Changes(Elastic(max=4), run)
    changes.take(Started(1.0, 0, 100))
    changes.take(Regrouped(1.0, 1, (0,), "the training starts", 0.5))
    assert run.notes == []
    changes.take(event)
    assert run.notes == [line]


@pytest.mark.parametrize(
    ("by", "reason"),
    [
        ("the schedule", "elastic.steps ended the training, after 100 steps"),
        ("a policy", "elastic.policy ended the training, after 100 steps"),
    ],
)
def test_ranks_that_leave_by_an_order_end_the_training_as_planned(board, by, reason):
    run = Run()
    changes = Changes(Elastic(max=4), run)
    board.publish(Generation(1, (0, 1)))
    board.order(0, by)
    board.publish(Generation(2, ()))
    changes.end(board)
    changes.conclude(progress())
    assert run.ends == run.notes == [reason]  # a run that has reached its target shows the note


@pytest.mark.parametrize(
    ("size", "members", "code"),
    [
        (0, (0,), 0),  # the order was not carried out
        (1, (), 0),  # all ranks were to start again
        (0, (), 1),  # a rank failed meanwhile
    ],
)
def test_no_other_end_is_planned(board, size, members, code):
    run = Run(code)
    changes = Changes(Elastic(max=4), run)
    board.order(size, "the schedule")
    board.publish(Generation(2, members))
    changes.end(board)
    changes.conclude(progress())
    assert run.ends == []


def test_a_training_without_an_order_or_without_its_files_is_not_ended_by_one(board):
    run = Run()
    changes = Changes(Elastic(max=4), run)
    changes.end(board)
    board.publish(Generation(1, ()))
    board.order(0, "the schedule")
    (board.folder / "1.json").unlink()
    changes.end(board)
    changes.conclude(progress())
    assert run.ends == []


END = "did not take effect before the end, after 100 steps"


@pytest.mark.parametrize(
    ("schedule", "changes", "late"),
    [
        ({10: 2}, [(0, 1), (12, 2)], []),
        ({10: 2, 50: 1}, [(0, 1), (45, 2), (52, 1)], []),
        ({10: 2, 50: 1}, [(0, 1), (52, 2), (55, 1)], []),  # it was announced before
        ({10: 2}, [(0, 2)], []),  # as at the start
        ({10: 2, 50: 2}, [(0, 1), (12, 2)], []),
        ({10: 2, 50: 0}, [(0, 1), (12, 2)], []),
        ({200: 0}, [(0, 1)], []),  # it has ended before
        ({10: 2}, [(0, 1)], [f"2 ranks after step 10 {END}"]),
        ({10: 2, 200: 1}, [(0, 1), (12, 2)], [f"1 rank after step 200 {END}"]),
        ({10: 2, 50: 1}, [(0, 1)], ["2 ranks after step 10 did not take effect before step 50"]),
        ({10: 2, 50: 1, 60: 2}, [(0, 1), (70, 2)],
         ["2 ranks after step 10 did not take effect before step 50"]),
        ({10: 3, 50: 2}, [(0, 1), (12, 2)],
         ["3 ranks after step 10 did not take effect before step 50"]),
        ({10: 3}, [], []),  # of a script whose ranks cannot change, another warning says so
    ],
)  # fmt: skip
def test_what_of_a_schedule_had_no_effect_in_time_is_said(schedule, changes, late):
    assert find_late(schedule, sizes(*changes), 100) == late


@pytest.mark.parametrize("code", [0, 1])
def test_it_is_one_warning_of_a_run_that_has_not_failed(code):
    run = Run(code)
    changes = Changes(Elastic(max=4, steps="10:2,20:3"), run)
    changes.conclude(progress(*sizes((0, 1))))
    both = "2 ranks after step 10 did not take effect before step 20"
    expected = [f"elastic.steps: {both}; 3 ranks after step 20 {END}"]
    assert run.warned == ([] if code else expected)
