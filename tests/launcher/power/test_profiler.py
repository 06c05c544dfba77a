"""Which limit is held while a trial runs: the walk, pauses, interrupted and stale profiles."""

from __future__ import annotations

import pytest

from tests.bandit.scripts import next_limit_w, problem, watts
from zeusrun.bandit.problem import PowerObjective, step_cost_j
from zeusrun.launcher.power.profiler import CHECK_EVERY_S, Profiling, objective_weights
from zeusrun.lever import power_lever
from zeusrun.sidecar.step_clock import StepCount
from zeusrun.trial import PowerPoint

LIMITS = (100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0)


def job(eta_knob=0.5, **changes):
    values = {"power_limits_w": LIMITS, "max_power_w": 250.0, "gpu_count": 1} | changes
    return problem(eta_knob=eta_knob, **values)


class Gpu:
    """Trains as fast as its limit lets it; the cube root of its power above idle."""

    def __init__(self, limit_w=250.0, wanted_w=240.0):
        self.limit_w, self.wanted_w, self.slower = limit_w, wanted_w, 1.0
        self.now_t, self.done, self.last_t = 0.0, 0.0, 0.0
        self.energies = [(0.0, 0.0)]
        self.held = []
        self.asleep_until = -1.0

    def point(self, limit_w):
        power_w = min(limit_w, self.wanted_w)
        clock = ((power_w - 50.0) / (self.wanted_w - 50.0)) ** (1 / 3)
        return PowerPoint(limit_w, 50.0 * clock / self.slower, power_w)

    def tick(self, profiling, **options):
        self.now_t += 0.1
        point = self.point(self.limit_w)
        awake = self.now_t > self.asleep_until
        if awake:
            self.done += 0.1 * point.steps_per_s
            self.last_t = self.now_t - (self.done % 1) / point.steps_per_s
        joules = self.energies[-1][1] + 0.1 * (point.power_w if awake else 50.0)
        self.energies.append((self.now_t, joules))
        if self.done < 1:
            return
        count = StepCount(int(self.done), 0.0, self.last_t)
        wanted_w = watts(profiling.advance(count, self.now_t, self.energy_j, **options))
        self.limit_w = 250.0 if wanted_w is None else wanted_w
        if not self.held or self.held[-1] != wanted_w:
            self.held.append(wanted_w)

    def energy_j(self, since_t, until_t):
        def at(t):
            index = min(int(t / 0.1), len(self.energies) - 2)
            (t0, j0), (t1, j1) = self.energies[index : index + 2]
            return j0 + (j1 - j0) * (t - t0) / (t1 - t0)

        return at(until_t) - at(since_t)

    def train(self, profiling, seconds, **options):
        for _ in range(round(seconds * 10)):
            self.tick(profiling, **options)


def begin(now, known=(), original_w=250.0, rule=next_limit_w):
    original = power_lever(original_w)
    return Profiling(now, known, original, lambda profile: power_lever(rule(now, profile)))


def best_w(now, gpu):
    return min(LIMITS, key=lambda limit: step_cost_j(gpu.point(limit), now))


@pytest.mark.parametrize("eta_knob", [0.25, 0.5, 1.0])
def test_the_best_limit_is_found_and_held(eta_knob):
    now, gpu = job(eta_knob), Gpu()
    profiling = begin(now)
    gpu.train(profiling, 80.0)
    assert watts(profiling.chosen) == best_w(now, gpu)
    assert gpu.held[-1] == watts(profiling.chosen)
    assert not profiling.probing
    assert len(profiling.points) <= 5
    assert profiling.stepped_under == profiling.points.keys()
    for point in profiling.points.values():
        truth = gpu.point(point.power_limit_w)
        assert point.steps_per_s == pytest.approx(truth.steps_per_s, rel=0.01)
        assert point.power_w == pytest.approx(truth.power_w, rel=0.01)


def test_each_limit_is_held_for_about_eleven_seconds():
    gpu, profiling = Gpu(), begin(job())
    gpu.train(profiling, 9.0)
    assert (len(gpu.held), profiling._probe.steps_before) == (1, 5)
    gpu.train(profiling, 4.0)
    assert len(gpu.held) == 2
    assert profiling._probe.steps_before > 1


def test_a_known_profile_is_used_at_once_and_only_checked():
    now, gpu = job(), Gpu()
    known = [gpu.point(limit) for limit in LIMITS]
    profiling = begin(now, known)
    gpu.train(profiling, 30.0)
    assert gpu.held == [best_w(now, gpu)]
    assert [*map(watts, profiling.points)] == [best_w(now, gpu)]  # measured again, at no cost
    assert profiling.extra_cost_j() is None


def test_an_interrupted_profile_continues_in_the_next_trial():
    now, gpu = job(), Gpu()
    first = begin(now)
    gpu.train(first, 13.0)
    (point,) = first.points.values()
    second = begin(now, [point])
    gpu.train(second, 60.0)
    assert point.lever not in second.points or watts(second.chosen) == point.power_limit_w
    assert watts(second.chosen) == best_w(now, gpu)


def test_a_probe_cut_short_by_the_end_of_the_training_is_kept_if_it_is_fair():
    gpu, profiling = Gpu(), begin(job())
    gpu.train(profiling, 5.0)
    profiling.finish()
    assert not profiling.points
    gpu.train(profiling, 3.0)
    profiling.finish()
    (point,) = profiling.points.values()
    assert point.power_w == pytest.approx(gpu.point(point.power_limit_w).power_w, rel=0.02)


def test_a_profile_that_no_longer_holds_is_measured_anew():
    now, gpu = job(), Gpu()
    known = [gpu.point(limit) for limit in LIMITS]
    gpu.wanted_w = 160.0  # other data: now it draws less
    profiling = begin(now, known)
    gpu.train(profiling, 120.0)
    assert watts(profiling.chosen) == best_w(now, gpu)
    truth = gpu.point(watts(profiling.chosen))
    assert profiling.points[profiling.chosen].power_w == pytest.approx(truth.power_w, rel=0.01)


def test_one_odd_window_does_not_throw_a_profile_away():
    now, gpu = job(), Gpu()
    profiling = begin(now, [gpu.point(limit) for limit in LIMITS])
    gpu.slower = 1.2
    gpu.train(profiling, 11.5)
    gpu.slower = 1.0
    gpu.train(profiling, 30.0)
    assert gpu.held == [best_w(now, gpu)]


def test_it_is_checked_again_from_time_to_time():
    now, gpu = job(), Gpu()
    profiling = begin(now, [gpu.point(limit) for limit in LIMITS])
    gpu.train(profiling, 20.0)
    gpu.slower = 1.3
    assert len(gpu.held) == 1
    gpu.train(profiling, CHECK_EVERY_S + 40.0)
    assert len(gpu.held) > 1  # the walk began anew


def test_a_job_whose_speed_wanders_is_not_followed_for_ever():
    now, gpu = job(), Gpu()
    profiling = begin(now, [gpu.point(limit) for limit in LIMITS])
    for turn in range(12):
        gpu.slower = 1.0 + 0.2 * (turn % 2)
        gpu.train(profiling, 180.0)
    changes = [limit for limit in gpu.held if limit is not None]
    assert len(changes) < 20
    assert watts(profiling.chosen) is not None


def test_during_an_evaluation_a_limit_that_is_only_tried_is_let_go():
    gpu, profiling = Gpu(), begin(job())
    gpu.train(profiling, 5.0)
    tried_w = gpu.held[-1]
    gpu.asleep_until = gpu.now_t + 10.0
    gpu.train(profiling, 9.0)
    assert gpu.held == [tried_w, None]
    gpu.train(profiling, 8.0)
    assert gpu.held == [tried_w, None, tried_w]
    assert profiling._probe.steps_before > 100
    assert profiling.stepped_under == {power_lever(tried_w)}
    gpu.train(profiling, 60.0)
    for point in profiling.points.values():
        assert point.power_w == pytest.approx(gpu.point(point.power_limit_w).power_w, rel=0.01)


@pytest.mark.parametrize("complete_s", [10.6, 10.8, 11.0, 11.2, 11.4, 11.6, 11.8, 12.0])
def test_an_evaluation_that_begins_about_when_a_point_is_complete_is_not_slowed_down(complete_s):
    gpu, profiling = Gpu(), begin(job())
    gpu.train(profiling, complete_s)
    gpu.asleep_until = gpu.now_t + 20.0
    gpu.train(profiling, 19.0)
    assert gpu.held[-1] is None
    gpu.train(profiling, 5.0)
    assert gpu.held[-1] is not None


def test_short_epochs_with_short_evaluations_do_not_change_the_limit_for_ever():
    gpu, profiling = Gpu(), begin(job())
    for _ in range(200):
        gpu.train(profiling, 2.0)
        gpu.asleep_until = gpu.now_t + 2.5
        gpu.train(profiling, 2.5)
    assert watts(profiling.chosen) is not None
    assert len(gpu.held) < 60


def test_a_limit_that_takes_long_to_set_is_measured_from_then_on():
    gpu, profiling = Gpu(), begin(job())
    gpu.train(profiling, 1.0)
    wanted_w, gpu.limit_w = gpu.limit_w, 250.0  # it is still being set
    for _ in range(60):
        gpu.now_t += 0.1
        gpu.done += 0.1 * gpu.point(250.0).steps_per_s
        gpu.energies.append((gpu.now_t, gpu.energies[-1][1] + 0.1 * 240.0))
    gpu.limit_w = wanted_w
    profiling.settle(gpu.now_t)
    gpu.train(profiling, 12.0)
    point = profiling.points[power_lever(wanted_w)]
    assert point.power_w == pytest.approx(gpu.point(wanted_w).power_w, rel=0.01)


def test_during_an_evaluation_the_choice_stays():
    now, gpu = job(), Gpu()
    profiling = begin(now, [gpu.point(limit) for limit in LIMITS])
    gpu.train(profiling, 5.0)
    gpu.asleep_until = gpu.now_t + 10.0
    gpu.train(profiling, 20.0)
    assert gpu.held == [best_w(now, gpu)]


def test_while_it_is_told_to_wait_it_asks_for_nothing_else():
    gpu, profiling = Gpu(), begin(job())
    gpu.train(profiling, 40.0, wait=True)
    assert len(gpu.held) == 1
    gpu.train(profiling, 1.0)
    assert len(gpu.held) == 2


def test_without_limits_to_choose_from_the_one_found_is_measured():
    gpu, profiling = Gpu(), begin(job(power_limits_w=()))
    gpu.train(profiling, 30.0)
    assert [*map(watts, profiling.points)] == [250.0]
    assert watts(profiling.chosen) == 250.0
    assert set(gpu.held) == {250.0}


def test_what_trying_costs_more_is_told():
    now, gpu = job(), Gpu()
    profiling = begin(now)
    gpu.train(profiling, 100.0)
    spent = 0.5 * gpu.energies[-1][1] + 0.5 * 250.0 * gpu.now_t
    throughout = gpu.done * step_cost_j(gpu.point(watts(profiling.chosen)), now)
    extra = profiling.extra_cost_j()
    assert extra > 0
    assert extra == pytest.approx(spent - throughout, rel=0.25)


def test_what_an_unfinished_search_has_cost_more_is_told_against_the_cheapest_limit_so_far():
    now, gpu = job(), Gpu()
    profiling = begin(now)
    gpu.train(profiling, 30.0)
    assert profiling.probing
    assert len(profiling.points) >= 2
    costs_j = [step_cost_j(point, now) for point in profiling.points.values()]
    steps = sum(profiling._held_steps.values())
    assert 0 < profiling.extra_cost_j() < steps * (max(costs_j) - min(costs_j))


def test_energy_that_becomes_unknown_ends_the_search_and_not_the_training():
    gpu, profiling = Gpu(), begin(job())
    gpu.train(profiling, 13.0)
    gpu.energy_j = lambda _since, _until: None
    gpu.train(profiling, 20.0)
    assert "unknown" in profiling.failure
    assert gpu.held[-1] is None  # as found


def test_a_limit_that_could_not_be_held_is_not_measured():
    gpu, profiling = Gpu(), begin(job())
    gpu.train(profiling, 5.0)
    profiling.give_up("the GPU refused it", released=True)
    gpu.train(profiling, 30.0)
    profiling.finish()
    assert not profiling.points
    assert watts(profiling.chosen) is None
    assert gpu.held[-1] is None


def test_steps_after_limits_were_given_up_are_not_what_trying_costs():
    gpu, profiling = Gpu(), begin(job())
    gpu.train(profiling, 80.0)
    chosen, extra_j = profiling.chosen, profiling.extra_cost_j()
    gpu.train(profiling, 10.0)
    assert profiling.extra_cost_j() == extra_j  # the choice costs nothing more than itself
    profiling.give_up("somebody else has set one", released=True)
    gpu.train(profiling, 60.0)
    assert profiling.extra_cost_j() == extra_j
    assert profiling.stepped_under > {chosen}


def test_where_the_limit_found_is_unknown_it_is_measured_and_the_search_is_over():
    asked = []
    gpu = Gpu()
    profiling = begin(job(), original_w=None, rule=lambda _now, profile: asked.append(profile))
    gpu.train(profiling, CHECK_EVERY_S * 3)
    assert len(asked) == 1
    assert not profiling.probing
    assert list(profiling.points) == [None]
    assert set(gpu.held) == {None}


class WatchedGpu(Gpu):
    """A GPU whose limit is read back; somebody else, or its driver, may hold it to another."""

    def __init__(self):
        super().__init__()
        self.forced_w = None
        self.answers = True

    def is_in_force(self, lever):
        return self.limit_w == lever.value if self.answers else None

    def tick(self, profiling, **options):
        told_w = self.limit_w
        self.limit_w = told_w if self.forced_w is None else self.forced_w
        super().tick(profiling, **options)


def begin_watched(gpu, known=()):
    now = job()
    return Profiling(
        now, known, power_lever(250.0), lambda p: power_lever(next_limit_w(now, p)), gpu.is_in_force
    )


@pytest.mark.parametrize("seconds", [1.0, 6.0, 9.0])
def test_a_limit_that_somebody_else_has_changed_is_not_measured(seconds):
    gpu = WatchedGpu()
    profiling = begin_watched(gpu)
    gpu.train(profiling, seconds)
    assert gpu.limit_w == 150.0
    gpu.forced_w = 200.0
    gpu.train(profiling, 30.0)
    assert "150 W is not in force" in profiling.failure
    assert not profiling.points
    assert gpu.held[-1] is None


def test_a_limit_that_a_driver_ignores_is_found_out_and_not_measured():
    gpu = WatchedGpu()
    gpu.forced_w = 250.0
    profiling = begin_watched(gpu)
    gpu.train(profiling, 15.0)
    assert not profiling.points
    assert "150 W is not in force" in profiling.failure


@pytest.mark.parametrize("forced_w", [200.0, None])
def test_a_probe_that_ends_early_is_kept_only_if_its_limit_is_in_force_at_the_end(forced_w):
    gpu = WatchedGpu()
    profiling = begin_watched(gpu)
    gpu.train(profiling, 8.0)
    gpu.limit_w = gpu.limit_w if forced_w is None else forced_w
    profiling.finish()
    assert [*map(watts, profiling.points)] == ([150.0] if forced_w is None else [])


def test_what_was_measured_before_a_pause_counts_only_if_the_limit_was_in_force_as_it_began():
    for forced_w, kept in ((200.0, False), (None, True)):
        gpu = WatchedGpu()
        profiling = begin_watched(gpu)
        gpu.train(profiling, 8.5)
        gpu.forced_w = forced_w
        gpu.asleep_until = gpu.now_t + 10.0
        gpu.train(profiling, 5.0)
        profiling.finish()
        assert bool(profiling.points) is kept


@pytest.mark.parametrize("begins", [True, False])
def test_a_limit_that_cannot_be_read_for_a_while_is_measured_once_it_can(begins):
    gpu = WatchedGpu()
    profiling = begin_watched(gpu)
    gpu.train(profiling, 0.1 if begins else 8.0)
    gpu.answers = False
    gpu.train(profiling, 20.0)
    assert not profiling.points
    gpu.answers = True
    gpu.train(profiling, 15.0)
    assert profiling.failure is None
    assert power_lever(150.0) in profiling.points


def test_only_what_the_objective_compares_must_be_known_well():
    assert [tuple(w) for w in objective_weights(job(0.5))] == [(0.5, 125.0)]
    assert [tuple(w) for w in objective_weights(job(1.0))] == [(1.0, 0.0)]
    assert [tuple(w) for w in objective_weights(job(0.0))] == [(0.0, 1.0)]
    unknown = job(0.5, max_power_w=None)
    assert [tuple(w) for w in objective_weights(unknown)] == [(1.0, 0.0)]
    energy = job(0.5, power_objective=PowerObjective("energy"))
    assert [tuple(w) for w in objective_weights(energy)] == [(1.0, 0.0)]
    slowdown = job(0.5, power_objective=PowerObjective("max_slowdown", 1.1))
    assert [tuple(w) for w in objective_weights(slowdown)] == [(1.0, 0.0), (0.0, 1.0)]
