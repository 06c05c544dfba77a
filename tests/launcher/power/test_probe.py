"""How long a power limit is measured, and what is left out of the measurement."""

from __future__ import annotations

import math

import numpy as np
import pytest

from zeusrun.launcher.power.probe import (
    COUNTER_ERROR,
    LONG_S,
    LOST_S,
    METERED_S,
    SETTLE_S,
    WANTED_ERROR,
    Measured,
    Probe,
    Weights,
    _Block,
    _error,
)
from zeusrun.sidecar.step_clock import StepCount
from zeusrun.trial import PowerPoint

ENERGY, TIME = Weights(1.0, 0.0), Weights(0.0, 1.0)


class Training:
    """Steps of a given length, seen ten times a second; power follows a function of time."""

    def __init__(self, step_s, watts=200.0, noise=0.0, seed=0):
        self.now_t = self.last_t = 100.0
        self.steps = 0
        self.step_s, self.watts, self.noise = step_s, watts, noise
        self.rng = np.random.default_rng(seed)
        self.due_t = self.now_t + self._next_s()
        self.pauses = []

    def _next_s(self):
        return self.step_s * max(0.1, 1 + self.noise * self.rng.standard_normal())

    def pause(self, seconds):
        self.pauses.append((self.now_t, self.now_t + seconds))
        self.due_t += seconds

    def energy_j(self, since_t, until_t):
        idle = sum(max(0.0, min(b, until_t) - max(a, since_t)) for a, b in self.pauses)
        return self.watts * (until_t - since_t - idle) + 50.0 * idle

    def tick(self):
        self.now_t += 0.1
        while self.due_t <= self.now_t:
            self.last_t, self.steps = self.due_t, self.steps + 1
            self.due_t += self._next_s()
        return StepCount(max(self.steps, 1), 100.0, self.last_t)


def measure(training, probe=None, weights=(ENERGY,), limit_s=400.0, each=lambda _: None):
    """Look until it is enough; return the measurement and how long it took."""
    probe = probe or Probe(training.now_t, training.steps)
    begun_t = training.now_t
    while training.now_t - begun_t < limit_s:
        each(training)
        probe.add(training.tick())
        if probe.meter(training.now_t, training.energy_j):
            measured = probe.measured(weights)
            if measured is not None and measured.enough:
                return measured, training.now_t - begun_t
    pytest.fail("it is never enough")


def test_steady_steps_are_measured_exactly_and_for_as_long_as_the_counter_needs():
    measured, took_s = measure(Training(0.02))
    assert measured.steps / measured.seconds == pytest.approx(50.0, rel=1e-6)
    assert measured.energy_j / measured.seconds == pytest.approx(200.0, rel=1e-6)
    assert measured.error <= WANTED_ERROR
    assert 8.2 <= measured.seconds <= 9.0  # 0.41 x 0.1 s / 0.5 %
    assert took_s < measured.seconds + SETTLE_S + 1.5


def test_energy_is_read_once_the_meter_has_samples_on_both_sides_of_a_block():
    training = Training(0.02)
    probe, lags_s = Probe(training.now_t, 0), []

    def energy_j(since_t, until_t):
        lags_s.append(training.now_t - until_t)
        return training.energy_j(since_t, until_t)

    for _ in range(100):
        probe.add(training.tick())
        probe.meter(training.now_t, energy_j)
    assert lags_s
    assert min(lags_s) >= METERED_S


@pytest.mark.parametrize(
    ("blocks", "seconds", "enough"),
    [(8, 1.0, True), (7, 1.0, False), (3, 100.0, True), (2, 200.0, False)],
)
def test_after_minutes_three_blocks_are_a_measurement(blocks, seconds, enough):
    probe = Probe(0.0, 0)
    probe._metered = [
        _Block(n * seconds, (n + 1) * seconds, 10, 200.0 * seconds) for n in range(blocks)
    ]
    assert (probe.measured((ENERGY,)) is not None) is enough


def test_a_measurement_is_enough_if_it_is_exact_or_has_taken_long():
    for seconds, steps, error, enough in (
        *((10.0, 20, WANTED_ERROR, True), (10.0, 19, 0.0, False), (59.0, 20, 0.006, False)),
        *((60.0, 20, 0.5, True), (299.0, 19, 0.5, False), (300.0, 1, 0.5, True)),
    ):
        measured = Measured(seconds, steps, 200.0 * seconds, error)
        assert measured.enough is enough
        assert measured.point(None) == PowerPoint(None, steps / seconds, 200.0)


@pytest.mark.parametrize(
    ("joules", "inflation"),
    [([200, 220] * 4, 1.0), ([200] * 4 + [220] * 4, 13 / 3), ([200] * 40 + [220] * 40, 19.0)],
)
def test_the_error_of_blocks_that_resemble_their_neighbours_is_larger(joules, inflation):
    n = len(joules)
    expected = math.sqrt(n * 100.0 * n / (n - 1) * inflation) / (n * 210.0)
    probe = Probe(0.0, 0)
    probe._metered = [_Block(t, t + 1.0, 10, joule) for t, joule in enumerate(joules)]
    assert _error(probe._metered, ENERGY) == pytest.approx(expected)
    assert _error(probe._metered, Weights(1e-9, 0.0)) == pytest.approx(expected)
    assert _error(probe._metered, Weights(0.0, 0.0)) == math.inf
    both = probe.measured((TIME, ENERGY))
    assert both[:3] == (n, 10 * n, sum(joules))
    assert both.error == pytest.approx(math.hypot(expected, COUNTER_ERROR / n))
    probe._metered[-1] = _Block(n, n + 1.0, 10, 220)  # after a stall; all take a second
    assert probe.measured((TIME,)).error == pytest.approx(COUNTER_ERROR * math.sqrt(2) / n)


def test_a_limit_settles_in_seconds_and_steps_and_a_much_longer_step_is_a_stall():
    settled = ((102.0, 15), (130.0, 5)), ((101.9, 50), (102.0, 14), (129.9, 14))
    for is_settled, cases in zip((True, False), settled, strict=True):
        assert {Probe(100.0, 5)._has_settled(*case) for case in cases} == {is_settled}
    cases = ([0.01], 0.0, 0.26), ([0.1], 0.0, 0.5), ([0.1], 1.0, 1.6), ([], 0.0, math.inf)
    for known, usual_stall_s, longest_s in cases:
        probe = Probe(0.0, 0, _step_s=known, _usual_stall_s=usual_stall_s)
        assert not probe._is_stall(longest_s - 0.01, 1)
        assert probe._is_stall(longest_s + 0.01, 1) is bool(known)
        assert not probe._is_stall(longest_s + 0.005, 2)


def test_ten_stalls_without_a_block_between_them_are_usual_but_for_evaluations():
    probe, now_t = Probe(0.0, 0, _step_s=[0.02], _last=(0.0, 0)), 0.0
    for number in range(1, 11):
        assert probe._usual_stall_s == 0.0
        now_t += 1.0 + number
        probe.add(StepCount(number, 0.0, now_t))
    assert (probe._usual_stall_s, probe._stalls_s) == (10.0, [])
    for n in (1, 2):
        probe.add(StepCount(10 + n, 0.0, now_t + n / 4))
    assert [block[:3] for block in probe._closed] == [(now_t, now_t + 0.5, 2)]


def test_a_probe_is_told_when_its_limit_is_held_again_and_what_the_last_one_has_seen():
    quick = Probe(0.0, 0, _step_s=[0.01], _last=(10.0, 5))
    assert (quick.pauses(12.0), quick.pauses(12.1)) == (False, True)
    probe = Probe(0.0, 0, _step_s=[1.0], _last=(10.0, 5))
    assert (probe.pauses(14.9), probe.pauses(15.5)) == (False, True)
    probe.hold_again(5.0, 5)  # it is held all the time
    probe.hold_again(12.0, 7)
    assert (probe._began_t, probe.held_t, probe.steps_before) == (2.0, 12.0, 7)
    assert (probe.pauses(16.9), probe.next(12.0, 7).pauses(17.1)) == (False, True)
    probe._usual_stall_s = 4.0
    assert not probe.next(12.0, 7).pauses(17.1)


def stalls(steps, gap_s):
    """Pause for so long after so many steps, again and again."""
    done = 0

    def each(training):
        nonlocal done
        if training.steps // steps > done:
            done = training.steps // steps
            training.pause(gap_s)

    return each


@pytest.mark.parametrize(
    ("steps", "step_s", "gap_s"), [(8, 0.02, 0.6), (4, 0.05, 0.5), (8, 0.03, 1)]
)
def test_stalls_that_come_all_the_time_are_part_of_the_training(steps, step_s, gap_s):
    measured, _ = measure(Training(step_s), each=stalls(steps, gap_s))
    expected = steps / (steps * step_s + gap_s)
    # Ten looks a second see a step up to a tenth late, so a gap may begin within a burst.
    assert measured.steps / measured.seconds == pytest.approx(expected, rel=0.2)


def test_steps_that_become_much_slower_for_good_are_measured_as_they_are_now():
    def grow(training):
        if training.steps >= 100:
            training.step_s = 0.33

    measured, _ = measure(Training(0.06), each=grow)
    slow = measure(Training(0.33))[0]
    assert measured.steps / measured.seconds < 2 * slow.steps / slow.seconds


def test_steps_that_never_come_regularly_are_given_up():
    training = Training(0.02)
    probe = Probe(training.now_t, 0)

    with pytest.raises(ValueError, match="too irregularly"):
        measure(training, probe, each=stalls(15, 20.0), limit_s=40_000.0)


def test_a_long_evaluation_in_which_no_limit_is_held_is_not_counted_as_held():
    training = Training(0.02)
    probe = Probe(training.now_t, 0)
    for _ in range(30):
        probe.add(training.tick())
    training.pause(3600.0)
    while not training.steps > 150:
        count = training.tick()
    probe.hold_again(training.now_t, count.steps)
    measured, _ = measure(training, probe)
    assert measured.enough


def test_noisy_steps_are_measured_for_longer():
    quiet, _ = measure(Training(0.1, noise=0.05), weights=(TIME,))
    loud, _ = measure(Training(0.1, noise=0.25), weights=(TIME,))
    assert loud.seconds > 2 * quiet.seconds
    assert loud.error <= WANTED_ERROR or loud.seconds >= LONG_S


def test_the_error_it_claims_is_the_error_it_makes():
    """Over many windows, the spread of what is measured agrees with what each says of itself."""
    rates, errors = [], []
    for seed in range(60):
        measured, _ = measure(Training(0.1, noise=0.1, seed=seed), weights=(TIME,))
        rates.append(measured.steps / measured.seconds)
        errors.append(measured.error)
    spread = np.std(rates) / np.mean(rates)
    assert 0.6 * spread <= np.mean(errors) <= 2.0 * spread + 0.004  # the counter's part stays


def test_energy_per_step_is_known_though_the_time_of_steps_is_not():
    """Watts are constant here, so the joules of a step follow its time; at constant joules, none."""
    training = Training(0.1, noise=0.25)

    def by_step(since_t, until_t):
        return 20.0 * float(np.diff(np.interp([since_t, until_t], times, counts))[0])

    times, counts = [100.0], [0]
    probe = Probe(training.now_t, 0)
    while True:
        count = training.tick()
        times.append(count.last_step_t)
        counts.append(training.steps)
        probe.add(count)
        if probe.meter(training.now_t, by_step):
            measured = probe.measured((ENERGY,))
            if measured is not None and measured.enough:
                break
    assert measured.seconds < 12.0
    assert measured.energy_j / measured.steps == pytest.approx(20.0, rel=1e-3)


def test_nothing_counts_before_the_limit_has_settled():
    slow = Training(1.0)
    probe = Probe(slow.now_t, 0)
    for _ in range(95):
        probe.add(slow.tick())
        probe.meter(slow.now_t, slow.energy_j)
    assert not probe.meter(slow.now_t + 1.0, slow.energy_j)  # nine steps of a second: it takes ten
    quick = Training(0.02)
    probe = Probe(quick.now_t, 0)
    while quick.now_t < 100.0 + SETTLE_S:
        probe.add(quick.tick())
        assert not probe.meter(quick.now_t + 1.0, quick.energy_j)


@pytest.mark.parametrize("pause_s", [0.4, 1.5, 20.0])
def test_a_pause_is_cut_out_of_the_window(pause_s):
    def each(training):
        last_t = training.pauses[-1][1] if training.pauses else 100.0
        if training.now_t - last_t > 3.0:
            training.pause(pause_s)

    measured, _ = measure(Training(0.02), each=each)
    assert measured.steps / measured.seconds == pytest.approx(50.0, rel=0.01)
    assert measured.energy_j / measured.seconds == pytest.approx(200.0, rel=0.01)


def test_unknown_energy_is_an_error_not_a_zero():
    training = Training(0.02)
    probe = Probe(training.now_t, 0)
    for _ in range(100):
        probe.add(training.tick())
    with pytest.raises(ValueError, match="unknown"):
        probe.meter(training.now_t + LOST_S, lambda _since, _until: None)


def test_energy_that_is_missing_for_a_moment_is_asked_for_again():
    training = Training(0.02)
    probe = Probe(training.now_t, 0)
    for _ in range(100):
        probe.add(training.tick())
    assert not probe.meter(training.now_t, lambda _since, _until: None)
    assert probe.meter(training.now_t, training.energy_j)
