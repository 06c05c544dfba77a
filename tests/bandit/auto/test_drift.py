"""Noticing that the job has moved."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bandit.runs import run
from zeusrun.bandit.auto.drift import first_valid
from zeusrun.trial import TrialStatus

STEADY = [run(64, epochs) for epochs in (10, 11, 9, 10)]
STOPPED = TrialStatus.STOPPED


def test_a_steady_job_has_not_moved():
    assert first_valid([]) == 0
    assert first_valid(STEADY * 5) == 0


@pytest.mark.parametrize("epochs", [30, 3])
def test_two_surprises_in_a_row_and_only_what_came_after_counts(epochs):
    assert first_valid([*STEADY, run(64, epochs)]) == 0
    assert first_valid([*STEADY, run(64, epochs), run(64, epochs)]) == 4


def test_a_single_surprise_is_an_accident():
    assert first_valid([*STEADY, run(64, 30), *STEADY, run(64, 30), run(64, 10)]) == 0


def test_surprises_of_opposite_kinds_are_noise():
    assert first_valid([*STEADY, run(64, 30), run(64, 3)]) == 0


def test_failing_twice_where_it_always_worked_is_a_change():
    missed = run(64, 40, status=TrialStatus.MISSED)
    stopped = run(64, 25, status=STOPPED)
    assert first_valid([*STEADY, missed, missed]) == 4
    assert first_valid([*STEADY, stopped, stopped]) == 4
    assert first_valid([*STEADY[:2], missed, missed]) == 0


def test_a_run_that_was_stopped_in_its_usual_epochs_was_only_dearer():
    """Such as on a machine that others use, too."""
    assert first_valid([*STEADY, *[run(64, 10, status=STOPPED)] * 4]) == 0


def test_a_run_of_another_arm_does_not_make_it_an_accident():
    other = [run(32, 10)] * 4
    early = run(64, 3, status=STOPPED)
    for between in (other[-1], early):
        assert first_valid([*STEADY, *other, run(64, 30), between, run(64, 30)]) == 8


def test_one_run_of_an_arm_is_enough_once_the_job_has_shown_its_spread():
    assert first_valid([*STEADY[:2], run(32, 10), run(32, 99), run(32, 99)]) == 0
    assert first_valid([*STEADY, *STEADY, run(32, 10), run(32, 99), run(64, 99)]) == 9


def test_arms_less_known_neither_count_nor_break_a_row():
    assert first_valid([*STEADY, run(64, 30), run(256, 99, status=STOPPED), run(64, 30)]) == 4


def test_it_may_move_again():
    later = [run(64, epochs) for epochs in (30, 31, 29, 30)]
    assert first_valid([*STEADY, *later, run(64, 10), run(64, 10)]) == 8


@pytest.mark.parametrize("sd", [0.05, 0.14, 0.4])
def test_noise_is_hardly_ever_taken_for_a_change(sd):
    rng = np.random.default_rng(0)
    moved = sum(
        first_valid([run(64, max(1, round(20 * rng.lognormal(0, sd)))) for _ in range(50)]) > 0
        for _ in range(200)
    )
    assert moved <= 4
