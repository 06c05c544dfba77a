"""Which power limit is held, and which are measured on the way there."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bandit.runs import run
from tests.bandit.scripts import first_limit_w, next_limit_w, problem, sweep_limit_w
from zeusrun.bandit.problem import PowerObjective
from zeusrun.trial import PowerPoint

LIMITS = (100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0)


def job(eta_knob=0.5, **changes):
    values = {"power_limits_w": LIMITS, "max_power_w": 250.0, "gpu_count": 1} | changes
    return problem(eta_knob=eta_knob, **values)


def gpu(limit, wanted_w=240.0, idle_w=50.0):
    """A GPU whose power above idle goes with the cube of its clock."""
    power_w = min(limit, wanted_w)
    clock = ((power_w - idle_w) / (wanted_w - idle_w)) ** (1 / 3)
    return PowerPoint(limit, 10.0 * clock, power_w)


def walk(now, curve, start_w=None, rule=next_limit_w):
    """Follow a rule to its choice; return it and what was measured."""
    profile = []
    for _ in range(20):
        limit = rule(now, profile, *([start_w] if start_w else []))
        if limit in {point.power_limit_w for point in profile}:
            return limit, profile
        profile.append(curve(limit))
    pytest.fail("it never comes to an end")


def best(now, curve):
    cost = {
        p.power_limit_w: (now.eta_knob * p.power_w + (1 - now.eta_knob) * 250) / p.steps_per_s
        for p in map(curve, LIMITS)
    }
    return min(cost, key=cost.get)


def test_limits_that_may_not_be_set_are_left_alone():
    assert next_limit_w(job(power_limits_w=()), ()) is None
    assert sweep_limit_w(job(power_limits_w=()), ()) is None


def test_only_time_counts_and_the_highest_is_taken_without_a_probe():
    assert next_limit_w(job(eta_knob=0.0), ()) == 250


@pytest.mark.parametrize(("eta", "start"), [(0.25, 225), (0.5, 150), (0.75, 150), (1.0, 125)])
def test_it_starts_where_the_best_lies_on_average(eta, start):
    assert next_limit_w(job(eta), ()) == start


def test_it_starts_at_the_choice_of_a_neighbour():
    assert next_limit_w(job(), (), 205.0) == 200


@pytest.mark.parametrize("eta", [0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("wanted_w", [130.0, 180.0, 240.0, 300.0])
def test_it_walks_to_the_best_in_few_probes(eta, wanted_w):
    now = job(eta)
    choice, profile = walk(now, lambda limit: gpu(limit, wanted_w))
    assert choice == best(now, lambda limit: gpu(limit, wanted_w))
    assert len(profile) <= (5 if wanted_w > 150 else 7)  # a plateau is walked to its end


def test_where_nothing_binds_it_goes_to_the_top():
    choice, profile = walk(job(), lambda limit: PowerPoint(limit, 10.0, 40.0))
    assert choice == 250
    assert [point.power_limit_w for point in profile] == [150, 250]


def test_where_nothing_binds_a_neighbour_that_stayed_at_the_top_leaves_one_probe():
    choice, profile = walk(job(), lambda limit: PowerPoint(limit, 10.0, 40.0), 250.0)
    assert (choice, len(profile)) == (250, 1)


def test_a_limit_whose_probe_came_to_nothing_is_neither_measured_again_nor_chosen():
    def broken(limit):
        return gpu(limit)._replace(steps_per_s=0.0) if limit == 175 else gpu(limit)

    for objective in (PowerObjective(), PowerObjective("max_slowdown", 1.1)):
        choice, profile = walk(job(power_objective=objective), broken)
        assert choice != 175
        assert len({point.power_limit_w for point in profile}) == len(profile)


def test_a_bursty_load_is_measured_under_the_lowest_limit():
    def bursty(limit):
        return PowerPoint(limit, 10.0, 90.0)

    _, profile = walk(job(), bursty)
    assert 100.0 in {point.power_limit_w for point in profile}


def test_a_close_neighbour_does_not_end_the_walk():
    def dented(limit):
        cost = {125.0: 1.02, 150.0: 1.0, 175.0: 1.005, 200.0: 0.9, 225.0: 0.95}.get(limit, 1.1)
        return PowerPoint(limit, 200.0 / cost, 150.0)

    assert walk(job(eta_knob=0.5), dented)[0] == 200


@pytest.mark.parametrize("seed", range(20))
def test_noise_on_a_plateau_does_not_hide_what_lies_below_it(seed):
    rng = np.random.default_rng(seed)
    now = job(power_limits_w=tuple(100.0 + 50.0 * n for n in range(7)), max_power_w=400.0)

    def noisy(limit):  # 250 W are drawn where they may be, so four limits are one and the same
        speed, draw = 1 + 0.003 * rng.standard_normal(2)
        point = gpu(limit, wanted_w=250.0, idle_w=90.0)
        seconds = 0.06 + 0.4 / point.steps_per_s  # most of a step waits for memory
        return PowerPoint(limit, speed / seconds, point.power_w * draw)

    choice, _ = walk(now, noisy, start_w=300.0)
    assert choice in (150.0, 200.0)  # the plateau costs 3 % more


def test_more_than_one_gpu_draws_a_share_each():
    now = job(gpu_count=4, max_power_w=1000.0)
    choice, _ = walk(now, lambda limit: PowerPoint(limit, 10.0 + 1e-9 * limit, 160.0))
    assert choice == 250  # 40 W each


def test_the_sweep_tries_all_of_them_and_takes_the_best():
    choice, profile = walk(job(), gpu, rule=sweep_limit_w)
    assert [point.power_limit_w for point in profile] == list(reversed(LIMITS))
    assert choice == best(job(), gpu)


def test_an_interrupted_walk_goes_on_in_the_next_trial():
    now = job()
    past = [run(64, profile=(gpu(150.0),)), run(64, profile=(gpu(175.0),))]
    assert first_limit_w(now, past, 64) == next_limit_w(now, (gpu(150.0), gpu(175.0)))


def test_an_arm_without_a_walk_begins_where_its_neighbour_ended():
    now = job()
    past = [run(32, profile=(gpu(200.0),)), run(256, profile=(gpu(100.0),))]
    assert first_limit_w(now, past, 64) == 200
    assert first_limit_w(now, [run(256, profile=(gpu(100.0),), local=False)], 64) == 150


def test_noise_of_half_a_percent_costs_next_to_nothing():
    rng, losses = np.random.default_rng(0), []
    for _ in range(200):
        wanted_w = float(rng.uniform(110, 300))

        def noisy(limit, wanted_w=wanted_w):
            point = gpu(limit, wanted_w)
            return point._replace(steps_per_s=point.steps_per_s * rng.normal(1, 0.005))

        choice, _ = walk(job(), noisy)
        cost = {w: (gpu(w, wanted_w).power_w + 250) / gpu(w, wanted_w).steps_per_s for w in LIMITS}
        losses.append(cost[choice] / min(cost.values()) - 1)
    assert np.mean(losses) < 0.003
    assert max(losses) < 0.03
