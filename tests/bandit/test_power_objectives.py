"""What each objective minimises, what always holds of the walk, and how good it is on traces."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bandit.runs import run
from tests.bandit.scripts import first_limit_w, next_limit_w, problem, sweep_limit_w
from tests.bandit.test_power import LIMITS, gpu, job, walk
from zeusrun.bandit.power import chosen_point
from zeusrun.bandit.problem import PowerObjective
from zeusrun.trial import PowerPoint

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT.parent / "shared" / "traces"
ENERGY, TIME = PowerObjective("energy"), PowerObjective("time")


def slower(factor):
    return PowerObjective("max_slowdown", factor)


OBJECTIVES = [PowerObjective(), ENERGY, TIME, slower(1.0), slower(1.05), slower(1.2), slower(3.0)]


def joules(point):
    return point.power_w / point.steps_per_s


def best_within(factor, curve):
    """The limit of fewest joules that takes at most so much longer than the highest."""
    points = list(map(curve, LIMITS))
    fast = [point for point in points if point.steps_per_s * factor >= points[-1].steps_per_s]
    return min(fast, key=joules).power_limit_w


def test_energy_is_walked_as_an_eta_knob_of_one():
    for wanted_w in (130.0, 180.0, 240.0, 300.0):

        def curve(limit, wanted_w=wanted_w):
            return gpu(limit, wanted_w)

        energy = walk(job(eta_knob=0.25, power_objective=ENERGY), curve)
        assert energy == walk(job(eta_knob=1.0), curve)


def test_energy_needs_no_maximum_power():
    assert walk(job(max_power_w=None, power_objective=ENERGY), gpu)[0] == 100


def test_time_holds_the_highest_without_a_probe():
    now = job(power_objective=TIME)
    assert next_limit_w(now, ()) == 250
    assert next_limit_w(now, (gpu(100.0),), 100.0) == 250
    assert sweep_limit_w(now, ()) == 250
    assert first_limit_w(now, [run(32, profile=(gpu(100.0),))], 64) == 250


@pytest.mark.parametrize("factor", [1.0, 1.05, 1.1, 1.2, 1.5])
@pytest.mark.parametrize("wanted_w", [90.0, 130.0, 180.0, 240.0, 300.0])
def test_max_slowdown_finds_the_fewest_joules_within_the_factor(factor, wanted_w):
    def curve(limit):
        return gpu(limit, wanted_w)

    choice, profile = walk(job(power_objective=slower(factor)), curve)
    assert joules(curve(choice)) == pytest.approx(joules(curve(best_within(factor, curve))))
    assert len(profile) <= (5 if factor > 1 else 7)  # noise hides where a factor of 1 ends


def test_max_slowdown_measures_the_highest_and_the_limit_below_its_answer():
    choice, profile = walk(job(power_objective=slower(1.1)), gpu)
    measured = {point.power_limit_w for point in profile}
    assert {250.0, choice, LIMITS[LIMITS.index(choice) - 1]} <= measured


def test_max_slowdown_begins_at_the_choice_of_a_neighbour():
    past = [run(32, profile=tuple(map(gpu, (175.0, 200.0, 250.0))))]
    now = job(power_objective=slower(1.1))
    assert first_limit_w(now, past, 64) == 200
    assert next_limit_w(now, (gpu(200.0),), 200.0) == 250


def test_max_slowdown_does_not_go_below_where_energy_rises():
    def steep(limit):  # from 150 W down, a step takes ever more energy
        return PowerPoint(limit, 10.0 * min(1.0, (limit / 150) ** 2), min(limit, 150.0))

    assert walk(job(power_objective=slower(3.0)), steep)[0] == 150


def test_max_slowdown_does_not_believe_one_fast_probe_below_a_slow_one():
    now = job(power_objective=slower(1.1))
    speeds = {250.0: 10.0, 225.0: 9.9, 200.0: 9.0, 175.0: 9.2}
    profile = [PowerPoint(limit, speed, limit) for limit, speed in speeds.items()]
    assert next_limit_w(now, profile) == 225
    assert chosen_point(profile, now).power_limit_w == 225


def test_the_point_of_an_arm_is_that_of_the_limit_its_objective_chose():
    profile = tuple(map(gpu, LIMITS))
    assert chosen_point(profile, job(power_objective=ENERGY)).power_limit_w == 100
    assert chosen_point(profile, job(power_objective=TIME)).power_limit_w == 250
    within = chosen_point(profile, job(power_objective=slower(1.1)))
    assert within.power_limit_w == best_within(1.1, gpu)
    assert chosen_point((), job()) is None
    assert chosen_point((PowerPoint(None, 1.0, 10.0),), job()).power_limit_w is None


def test_a_sweep_ends_at_the_choice_of_its_objective():
    for objective in (ENERGY, slower(1.1)):
        now = job(power_objective=objective)
        choice, profile = walk(now, gpu, rule=sweep_limit_w)
        assert len(profile) == len(LIMITS)
        assert choice == chosen_point(profile, now).power_limit_w


speeds = st.floats(0.01, 100.0) | st.just(0.0)  # 0: the probe came to nothing
powers = st.floats(1.0, 1000.0)


@st.composite
def walks(draw):
    limits = tuple(sorted(draw(st.sets(st.integers(50, 700).map(float), min_size=1, max_size=15))))
    points = {limit: PowerPoint(limit, draw(speeds), draw(powers)) for limit in limits}
    now = problem(
        eta_knob=draw(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])),
        power_objective=draw(st.sampled_from(OBJECTIVES)),
        power_limits_w=limits,
        max_power_w=draw(st.sampled_from([None, 700.0])),
        gpu_count=draw(st.integers(0, 8)),
    )
    return now, points, draw(st.none() | powers)


@given(walks())
def test_any_walk_ends_at_a_limit_that_was_measured(drawn):
    now, points, start_w = drawn
    profile = []
    for _ in range(len(points) + 1):
        limit = next_limit_w(now, profile, start_w)
        if limit in {point.power_limit_w for point in profile}:
            break
        profile.append(points[limit])
    else:
        pytest.fail("it never comes to an end")
    assert next_limit_w(now, profile[::-1], start_w) == limit  # in whichever order
    if now.power_objective == TIME or (now.power_objective.name == "cost" and not now.eta_knob):
        assert limit == now.levers[-1].value
    elif known := chosen_point(profile, now):
        assert limit == known.power_limit_w
        assert next_limit_w(now, profile) == limit  # wherever it began


@given(walks())
def test_a_limit_is_chosen_only_if_it_was_measured_fast_enough(drawn):
    now, points, start_w = drawn
    factor = now.power_objective.factor
    if factor is None or not all(point.steps_per_s for point in points.values()):
        return
    profile = {}
    while (limit := next_limit_w(now, tuple(profile.values()), start_w)) not in profile:
        profile[limit] = points[limit]
    top = points[now.levers[-1].value]
    assert points[limit].steps_per_s * factor >= top.steps_per_s * (1 - 1e-9)


@cache
def benchmark():
    """benchmarks/power_limits.py."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import power_limits
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    return power_limits


@cache
def replayed():
    if not TRACES.is_dir():
        pytest.skip(f"needs the recorded power profiles in {TRACES}")
    power_limits = benchmark()
    cases = power_limits.load_cases(TRACES)
    return {name: power_limits.replay(cases, name, 0.0, 1) for name in power_limits.OBJECTIVES}


def test_on_recorded_profiles_the_choice_is_as_good_as_promised():
    power_limits = benchmark()
    first, _ = power_limits.pooled(replayed())
    losses = np.array([walked.loss for walked in first])
    assert losses.mean() <= 0.0002
    assert (losses <= 0.01).mean() >= 0.98
    assert losses.max() <= 0.025
    assert max(walked.breach for walked in first) <= 1e-9


def test_on_recorded_profiles_it_needs_two_fifths_of_a_sweep():
    power_limits = benchmark()
    first, second = power_limits.pooled(replayed(), power_limits.is_probed)
    assert np.mean([walked.probes / walked.sweep for walked in first]) <= 0.42
    assert np.mean([walked.probes for walked in second]) <= 2.5


@pytest.mark.parametrize("family", ["cubic", "roofline", "bursty", "unbound"])
def test_on_made_up_profiles_the_choice_is_within_one_percent(family):
    power_limits = benchmark()
    rng = np.random.default_rng(3)
    cases = [power_limits.make_up(family, rng) for _ in range(25)]
    for name in power_limits.OBJECTIVES:
        scores = power_limits.replay(cases, name, 0.0, 1)
        assert np.mean([walked.loss <= 0.01 for _, walked in scores.first]) >= 0.95, name
