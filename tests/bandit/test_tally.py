"""What policies that treat each batch size by itself count of a job's runs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bandit.runs import run
from tests.bandit.scripts import MISSED, OOM, problem, trial
from zeusrun.bandit.registry import create_policy
from zeusrun.bandit.reinterpret import read_history
from zeusrun.bandit.tally import build_tally


def tally_of(*trials, **changes):
    return build_tally(*read_history(problem(**changes), trials))


def test_a_shared_run_counts_at_the_cost_that_its_epochs_have_without_the_others():
    shared = trial(64, energy_j=900.0, epochs=9, shared=True)
    calm = trial(64, energy_j=100.0, epochs=5)
    assert tally_of(shared, calm).costs_j == {64: [180.0, 100.0]}
    assert tally_of(shared).costs_j == {64: [900.0]}  # at most
    assert len(tally_of(shared, trial(64, MISSED, shared=True)).results[64]) == 2
    elsewhere = trial(64, gpu_model="A100", shared=True)
    assert tally_of(elsewhere).results == {}


@pytest.mark.parametrize("name", ["grid", "zeus"])
def test_a_job_that_always_shares_its_machine_comes_to_try_every_batch_size(name):
    """Its runs counted for nothing, so the default ran for ever."""
    trials, policy = [], create_policy(name)
    for recurrence in range(12):
        now, runs = read_history(problem(recurrence=recurrence), trials)
        arm = policy.choose(now, runs, np.random.default_rng(0)).global_batch_size
        trials.append(trial(arm, recurrence=recurrence, shared=True))
    assert {each.global_batch_size for each in trials} == set(problem().candidates)


def test_runs_of_another_training_count_until_those_of_todays_contradict_them():
    before = [run(64, 10, differs="script:a")] * 8
    assert len(build_tally(problem(), before).results[64]) == 8
    alike = [*before, *[run(64, 10)] * 4]
    assert len(build_tally(problem(), alike).results[64]) == 12
    changed = [*before, *[run(64, 20)] * 4]
    assert build_tally(problem(), changed).costs_j == {64: [2000.0] * 4}


def test_an_edit_leaves_what_is_known_of_memory():
    before = [run(64, 10, differs="script:a")] * 8
    crash = run(64, status=OOM, epochs=None, per_epoch=None)
    tally = build_tally(problem(), [*before, *[run(32, 20)] * 4, *[run(64, 20)] * 3, crash])
    assert 64 in tally.fitting
    gone = build_tally(problem(), [*before, *[run(32, 10)] * 4, crash])
    assert 64 in gone.fitting
