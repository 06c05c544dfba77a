"""A model every night: whatever the nights before were like, stopped runs alone end no recurrence."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bandit.test_invariants import unhurried
from zeusrun.bandit.registry import create_policy
from zeusrun.simulate.engine import LearningCurve, Rate, SimulatedJob
from zeusrun.simulate.replay import ask_about, replay
from zeusrun.trial import TrialStatus

ARMS = (32, 64, 128, 16, 256, 8)
EPOCHS = {32: 90, 64: 100, 128: 115}


def curve(epochs: int | None) -> LearningCurve:
    """A run that learns steadily; ``None``: halfway to the target."""
    steps = epochs or 60
    return LearningCurve(
        epochs, tuple((n, n / steps * (1 if epochs else 0.5)) for n in (*range(1, steps, 7), steps))
    )


def make_job(epochs, slowness=None, first=None, most=400) -> SimulatedJob:
    """A job that needs so many epochs by batch size; ``first`` in its first recurrence."""
    usual = {arm: [curve(each)] for arm, each in epochs.items()}
    at_first = {arm: [curve(each if first is None else first)] for arm, each in epochs.items()}
    return SimulatedJob(
        name="nights",
        default=64,
        mode="max",
        target=1.0,
        max_epochs=most,
        max_power_w=200.0,
        rates={arm: {200.0: Rate(30 + 1920 / arm, 150.0)} for arm in epochs},
        eras=((1, at_first), (2, usual)),
        slowness=slowness or {},
    )


def play(policy, job, recurrences=30, seed=0, attempts=5):
    """Return the trials of each recurrence."""
    played = replay(job, policy, ask_about(job, 0.5, 2.0), recurrences, seed, attempts=attempts)
    trials = [each.trial for each in played]
    return [list(own) for _, own in groupby(trials, key=lambda trial: trial.recurrence)]


def named(name):
    """Return a policy as submits use it; a simulation runs ``zeus`` as it was published."""
    policy = create_policy(name)
    policy.name = f"submitted {name}"
    return policy


@pytest.mark.parametrize("name", ["auto", "grid", "fixed", "zeus"])
@unhurried
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_no_recurrence_ends_with_stopped_runs_alone(name, seed, attempts):
    """Any epochs, batch sizes that never reach the target, slow nights and one cheap success."""
    rng = np.random.default_rng(seed)
    arms = {64, *ARMS[: rng.integers(1, len(ARMS) + 1)]}
    epochs = {arm: int(rng.integers(2, 60)) if rng.random() < 0.8 else None for arm in sorted(arms)}
    slow = {n: float(np.exp(rng.normal(0, 0.8))) for n in range(1, 9) if rng.random() < 0.5}
    job = make_job(epochs, slow, int(rng.integers(1, 9)) if rng.random() < 0.5 else None, most=60)
    for made in play(named(name), job, 6, seed, attempts):
        assert {trial.status for trial in made} != {TrialStatus.STOPPED}


@pytest.mark.parametrize("attempts", [1, 2, 5])
@pytest.mark.parametrize("first", [1, 5, 20])
def test_one_cheap_success_costs_no_night_and_few_runs(first, attempts):
    nights = play(create_policy("auto"), make_job(EPOCHS, first=first), attempts=attempts)
    assert all(made[-1].status is TrialStatus.REACHED for made in nights)
    assert sum(map(len, nights)) <= 35


@pytest.mark.parametrize("slower", [1.5, 2.1, 5.0])
def test_a_slow_night_stops_no_run_that_is_on_its_usual_way(slower):
    (*_, before), night = play(create_policy("auto"), make_job(EPOCHS, {20: slower}), 20)[-2:]
    assert [trial.status for trial in night] == [TrialStatus.REACHED]
    assert night[0].global_batch_size == before.global_batch_size
