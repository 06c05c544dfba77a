"""The policy at work on synthetic jobs, through the same calls as a submit."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.bandit.scripts import MISSED, OOM, REACHED, STOPPED, problem, trial
from zeusrun.bandit.reinterpret import read_history
from zeusrun.bandit.zeus.policy import Zeus

CANDIDATES = (8, 16, 32, 64, 128, 256, 512)
JOB = problem(candidates=CANDIDATES, default=256, learning_rates=dict.fromkeys(CANDIDATES, 0.1))


def cost_of(arm: int, best: int) -> float:
    return 1000 * 2 ** (0.3 * math.log2(arm / best) ** 2)


def simulate(seed: int, best: int, recurrences: int = 60, too_large: int = 10**9):
    """Run recurrences with 14 % noise; 8 never converges, ``too_large`` does not fit."""
    rng, noise = np.random.default_rng(seed), np.random.default_rng(seed + 1000)
    policy, past, final = Zeus(), [], []
    for recurrence in range(recurrences):
        now = dataclasses.replace(JOB, recurrence=recurrence)
        for attempt in range(5):
            decision = policy.choose(*read_history(now, past), rng)
            bound = decision.bound and decision.bound.cost_j
            arm = decision.global_batch_size
            cost = cost_of(arm, best) * noise.lognormal(0, 0.14)
            status = OOM if arm >= too_large else MISSED if arm == 8 else REACHED
            if status is REACHED and bound is not None and cost > bound:
                status, cost = STOPPED, bound
            past.append(
                trial(
                    arm,
                    status,
                    cost,
                    recurrence=recurrence,
                    attempt=attempt,
                    stage=decision.stage,
                    why=decision.why,
                )
            )
            if status is REACHED:
                break
        final.append(past[-1].global_batch_size)
    return past, final


@pytest.mark.parametrize("best", [16, 64, 256])
def test_it_settles_on_the_best_arm(best):
    finals = [arm for seed in range(4) for arm in simulate(seed, best)[1][-20:]]
    assert finals.count(best) / len(finals) > 0.8


def test_it_costs_less_than_never_optimising():
    past, _ = simulate(0, best=32)
    assert sum(t.energy_j for t in past) < 0.7 * 60 * cost_of(256, 32)


def test_an_arm_that_never_converges_runs_once():
    past, _ = simulate(0, best=16)
    assert [t.global_batch_size for t in past].count(8) == 1


def test_what_does_not_fit_runs_once_and_nothing_larger_ever():
    past, final = simulate(0, best=64, too_large=256)
    crashed = [t.global_batch_size for t in past if t.status is OOM]
    assert crashed == [256]
    assert all(t.status is REACHED for t in past[-20:])
    assert set(final[-20:]) <= {32, 64, 128}


def test_the_same_seed_replays_the_same_history():
    assert simulate(3, best=64) == simulate(3, best=64)
