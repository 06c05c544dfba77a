"""How many ranks pay: made-up throughputs and energies, and what is decided by them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.elastic.changes import Provisioner
from zeusrun.elastic.section import Provision
from zeusrun.sidecar.step_clock import StepCount

EVERY = 10


class Training:
    """A training of which a test says how fast it is with each number of ranks.

    Attributes:
        sizes: The numbers of ranks so far, the first included.
    """

    def __init__(
        self, rates, most, by="throughput", size=1, watts=None, *, samples=lambda _: 16, every=EVERY
    ):
        self.rates, self.watts, self.by = rates, watts, by
        self.sizes = [size]
        self.generation = 1
        self.steps, self.t = 0, 100.0
        self.measured, self.rows = {}, []
        self.planned = None
        section = Provision(by=by, every=every)
        self.provisioner = Provisioner(section, most, self._energy, samples, self._note)
        self.asked = []

    def _note(self, row):
        self.rows.append(row)
        self.measured[row[2]] = row[3]

    def _energy(self, since, until):
        assert since < until
        return None if self.watts is None else self.watts[self.sizes[-1]] * (until - since)

    def step(self):
        self.steps += 1
        self.t += 1 / self.rates[self.sizes[-1]]
        count = StepCount(self.steps, 100.0, self.t)
        size = self.provisioner.advance(self.generation, self.sizes[-1], count, self.planned)
        if size is not None:
            self.asked.append(size)
        return size

    def regroup(self, size):
        self.sizes.append(size)
        self.generation += 1

    def train(self, steps):
        for _ in range(steps):
            size = self.step()
            if size is not None:
                self.regroup(size)
        return self.sizes


def rates_of(*rates):
    return dict(enumerate(rates, 1))


def test_ranks_are_added_while_they_add_a_third_of_their_share_then_the_last_is_dropped():
    training = Training(rates_of(10, 19, 26, 26.5), most=8)  # 26 * (1 + 1/12) = 28.2
    assert training.train(200) == [1, 2, 3, 4, 3]
    assert training.provisioner.has_ended
    assert training.measured == pytest.approx({1: 160, 2: 304, 3: 416, 4: 424})


def test_a_step_that_has_more_samples_with_more_ranks_may_take_longer():
    rates = rates_of(10, 9, 8)
    assert Training(rates, most=3).train(100) == [1, 2, 1]
    assert Training(rates, most=3, samples=lambda ranks: 8 * ranks).train(100) == [1, 2, 3]


def test_the_rule_holds_with_equality():
    exact = Training(rates_of(36, 42, 42 * 10 / 9 - 1e-6), most=4)  # 36 * 7/6 = 42
    assert exact.train(200) == [1, 2, 3, 2]


def test_at_the_most_ranks_it_stops():
    training = Training(rates_of(10, 20, 30), most=3)
    assert training.train(200) == [1, 2, 3]
    assert training.provisioner.has_ended


def test_it_begins_with_the_ranks_of_the_start():
    assert Training(rates_of(1, 1, 30, 60, 60), most=9, size=3).train(200) == [3, 4, 5, 4]


def test_where_all_may_train_already_it_only_stops():
    training = Training(rates_of(1, 2, 3), most=3, size=3)
    assert training.train(100) == [3]
    assert training.provisioner.has_ended


def test_each_number_is_measured_for_so_many_steps_after_two():
    training = Training(rates_of(1, 2), most=4)
    # The first call begins the window; two steps are left out.
    assert [training.step() for _ in range(3 + EVERY)] == [None] * (2 + EVERY) + [2]


def test_a_changed_generation_begins_the_window_again():
    training = Training(rates_of(1, 2, 3), most=4)
    for _ in range(2 + EVERY):
        assert training.step() is None
    training.regroup(1)  # a lost rank was replaced
    assert [training.step() for _ in range(3 + EVERY)] == [None] * (2 + EVERY) + [2]


def test_what_was_measured_before_a_change_does_not_count():
    training = Training(rates_of(10, 20, 20), most=4)
    training.train(3 + EVERY)
    assert training.sizes == [1, 2]
    training.rates[2] = 1.0
    for _ in range(EVERY):
        training.step()
    training.rates[2] = 20.0
    training.regroup(2)
    assert training.train(3 + EVERY)[-1] == 3


def test_while_newcomers_start_nothing_is_measured_and_nothing_ordered():
    training = Training(rates_of(10, 20, 30, 40), most=4)
    training.train(3 + EVERY)
    for _ in range(3 + EVERY):
        size = training.step()
    assert size == 3
    training.rates[2] = 5.0  # their imports take the CPU
    assert {training.step() for _ in range(5 * EVERY)} == {None}
    training.regroup(3)
    assert training.train(100) == [1, 2, 3, 4]
    assert training.asked == [2, 3, 4]


def test_once_it_has_ended_other_changes_make_no_difference():
    training = Training(rates_of(10, 10, 10), most=4)
    assert training.train(100) == [1, 2, 1]
    training.regroup(2)
    assert training.train(100) == [1, 2, 1, 2]


def test_each_row_says_where_what_it_was_measured_and_what_follows():
    training = Training(rates_of(10, 19, 19), most=8, watts={1: 32, 2: 38, 3: 57})
    training.train(100)
    assert [row[0] for row in training.rows] == [13, 26, 39]  # steps
    assert training.rows[0][1] == pytest.approx(1.3)  # seconds since the first step
    assert [row[2] for row in training.rows] == [1, 2, 3]
    assert [row[3] for row in training.rows] == pytest.approx([160, 304, 304])
    assert [row[4] for row in training.rows] == pytest.approx([0.2, 0.125, 0.1875])
    assert [row[5] for row in training.rows] == ["add a rank", "add a rank", "remove a rank"]
    last = Training(rates_of(10, 20), most=2)
    last.train(100)
    assert [row[4:] for row in last.rows] == [(None, "add a rank"), (None, "stay")]


@pytest.mark.parametrize(
    ("every", "planned", "steps"),
    [
        (100, None, 100),
        (100, 10_000, 100),
        (100, 1000, 50),
        (100, 200, 30),  # as few as say something
        (10, 200, 10),
        (500, 10**6, 500),
        (500, 4000, 200),
    ],
)
def test_of_a_short_training_a_measurement_is_a_small_part(every, planned, steps):
    training = Training(rates_of(10, 20), most=2, every=every)
    training.planned = planned
    assert [training.step() for _ in range(3 + steps)] == [None] * (2 + steps) + [2]


def test_by_joules_a_rank_stays_if_a_sample_takes_less():
    rates = rates_of(10, 15, 18)  # each throughput gains
    watts = {1: 100, 2: 140, 3: 180}  # 10, 9.3 and 10 J a step
    assert Training(rates, 4, "joules", watts=watts).train(200) == [1, 2, 3, 2]


def test_by_joules_ranks_are_dropped_that_only_save_time():
    rates, watts = rates_of(10, 20), {1: 10, 2: 30}
    assert Training(rates, 4, "joules", watts=watts).train(200) == [1, 2, 1]


def test_by_joules_a_measurement_takes_a_second():
    training = Training(rates_of(1000, 2000), 2, "joules", watts={1: 10, 2: 10})
    assert training.train(1001) == [1]
    assert training.train(10) == [1, 2]


def test_where_the_energy_is_unknown_nothing_changes():
    training = Training(rates_of(10, 20), 4, "joules")
    assert training.train(100) == [1]
    assert not training.provisioner.has_ended


def test_energy_that_is_known_later_counts_then():
    training = Training(rates_of(10, 20), 2, "joules")
    training.train(100)
    training.watts = {1: 10, 2: 10}
    assert training.train(100) == [1, 2]


@pytest.mark.parametrize("stride", [2, 7, 100])
def test_it_need_not_see_every_step(stride):
    training = Training(rates_of(10, 19, 19), most=8)
    for _ in range(60):
        training.steps += stride - 1
        training.t += (stride - 1) / training.rates[training.sizes[-1]]
        training.train(1)
    assert training.sizes == [1, 2, 3, 2]


@given(
    st.lists(st.floats(1e-3, 10.0), min_size=12, max_size=12),
    st.lists(st.floats(1e-3, 1e6), min_size=12, max_size=12),
    st.integers(1, 12).flatmap(lambda most: st.tuples(st.just(most), st.integers(1, most))),
    st.sampled_from(["throughput", "joules"]),
)
def test_it_ends_after_each_number_once_and_never_leaves_the_range(rates, watts, limits, by):
    most, first = limits
    training = Training(rates_of(*rates), most, by, first, rates_of(*watts))
    training.train((most + 2) * (EVERY + 4))
    assert training.provisioner.has_ended
    assert all(first <= size <= most for size in training.asked)
    assert len(training.asked) <= most - first + 1
    assert training.train(50) == training.sizes  # and stays


@given(st.data(), st.integers(1, 6))
def test_whatever_changes_the_ranks_meanwhile_no_order_leaves_the_range(data, most):
    sizes = st.integers(1, most)
    training = Training({n: data.draw(st.floats(0.1, 100)) for n in range(1, 9)}, most)
    for _ in range(data.draw(st.integers(1, 12))):
        training.train(data.draw(st.integers(1, 3 * EVERY)))
        training.regroup(data.draw(sizes))
    assert all(1 <= size <= most for size in training.asked)
