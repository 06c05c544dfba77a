"""Where in the training a line or a row was written, by the step clock."""

from __future__ import annotations

import pytest

from zeusrun.metrics.rows import Places, Row
from zeusrun.sidecar.events import Reported
from zeusrun.sidecar.step_clock import Place, StepCount


def line(log_bytes, *, t=50.0, epoch=1, counted=True, name="accuracy"):
    return Row(Reported(t, epoch, {name: 0.5}, "stdout", counted=counted), log_bytes)


def row(t, epoch):
    return Row(Reported(t, epoch, {"accuracy": 0.5}, "csv", counted=True), None)


def note(log_bytes, t, *counts):
    return log_bytes, Place(t, *counts)


def facts(events):
    return [(e.epoch, e.steps, e.samples) for e in events]


# Four steps of 8 in each of two passes, and a line after each pass and before the first one.
TWO_PASSES = StepCount(
    8, 10.0, 20.0, 64, 2, 2, (note(10, 10.0, 0, 0, 0, 0), note(20, 15.0, 4, 32, 1, 1))
)


def test_lines_have_the_passes_and_samples_before_the_step_that_followed_them():
    events = Places().put([line(9), line(19, epoch=2), line(29, epoch=3)], TWO_PASSES)
    assert facts(events) == [(1, 0, None), (1, 4, 32), (2, 8, 64)]
    assert [event.counted for event in events] == [True, False, False]
    assert [event.t for event in events] == pytest.approx([10.0, 15.0, 50.0])  # arrived at 50
    assert events[0].t < 10.0


def test_a_line_with_an_epoch_of_its_own_keeps_it():
    (event,) = Places().put([line(19, epoch=7, counted=False)], TWO_PASSES)
    assert (event.epoch, event.samples) == (7, 32)


def test_where_no_loader_is_seen_the_kth_value_stays_the_kth():
    count = StepCount(8, 10.0, 20.0)
    events = Places().put([line(19, epoch=3)], count)
    assert facts(events) == [(3, 8, None)]
    assert events[0].counted


def test_without_a_step_nothing_is_trained():
    assert facts(Places().put([line(9)], None)) == [(1, 0, None)]


def test_rows_of_a_file_are_known_by_their_times():
    places = Places()
    assert facts(places.put([row(9.0, 1)], TWO_PASSES)) == [(1, 0, None)]
    assert facts(places.put([row(14.0, 2)], TWO_PASSES)) == [(1, 4, 32)]
    assert facts(places.put([row(21.0, 3)], TWO_PASSES)) == [(2, 8, 64)]


def test_rows_that_a_program_wrote_at_once_are_spread_over_the_passes_before_them():
    count = StepCount(8, 10.0, 20.0, 64, 2, 2, (note(0, 10.0, 0, 0, 0, 0),))
    assert facts(Places().put([row(21.0, 1), row(21.0, 2)], count)) == [(1, 4, 32), (2, 8, 64)]


def by_steps(gap, others=0, passes=0):
    """Lines with so many steps, evaluations and passes between them."""
    notes = [
        note(10 * n, 10.0 + n, gap * n, 8 * gap * n, 1 + passes * n, others * n)
        for n in range(1, 7)
    ]
    count = StepCount(gap * 6 + 1, 10.0, 30.0, 8, 1, 0, tuple(notes))
    return Places().put([line(10 * n, counted=False) for n in range(1, 7)], count, final=True)


@pytest.mark.parametrize(
    ("lines", "each_step"),
    [
        pytest.param(by_steps(1), True, id="each batch"),
        pytest.param(by_steps(5), True, id="a handful of batches"),
        pytest.param(by_steps(10), False, id="an evaluation without a loader"),
        pytest.param(by_steps(1, others=1), False, id="an evaluation after each step"),
        pytest.param(by_steps(1, passes=1), False, id="an epoch of one step"),
        pytest.param(by_steps(0), False, id="many lines of one evaluation"),
    ],
)
def test_lines_of_single_batches_are_logged_in_each_step(lines, each_step):
    assert {event.each_step for event in lines} == {each_step}


def read_one_by_one(*places):
    """Read lines as a training prints them, and twice more; return what is known after each.

    Each place is that before the step after its line. At the end it is in its second pass.
    """
    source, notes, known = Places(), [note(0, 10.0, 0, 0, 0, places[0][3])], []
    for n, place in enumerate([*places, None, None], 1):
        lines = [] if place is None else [line(10 * n, counted=False)]
        now = (90, 8, 2, places[0][3]) if place is None else place
        if place is not None:
            notes.append(note(10 * n, 10.0 + n, *place))
        count = StepCount(now[0] + 1, 10.0, 30.0, now[1], *now[2:], notes=tuple(notes))
        known.append([event.each_step for event in source.put(lines, count)])
    return known


@pytest.mark.parametrize("gap", [1, 2, 3, 5])
@pytest.mark.parametrize("others", [0, 1])  # a sanity check before the training reads a loader
def test_the_first_lines_wait_until_it_is_known_that_they_are_of_single_batches(gap, others):
    """One of them may meet the target by luck."""
    batches = [(gap * n, 8 * gap * n, 1, others) for n in range(1, 6)]
    assert read_one_by_one(*batches) == [[], [], [], [True] * 4, [True], [], []]


def test_the_first_lines_wait_until_the_training_has_gone_on_without_another_one():
    assert read_one_by_one((2, 16, 1, 0)) == [[], [], [False]]
    assert read_one_by_one((2, 16, 1, 0), (4, 32, 2, 0)) == [[], [], [False, False], []]
    assert read_one_by_one((2, 16, 1, 0), (12, 96, 1, 0)) == [[], [], [], [False, False]]
    # An evaluation reads a loader, and later lines are none of the first.
    assert read_one_by_one((1, 8, 1, 0), (2, 16, 1, 1)) == [[], [], [False, False], []]
    assert read_one_by_one((40, 320, 1, 0)) == [[False], [], []]


def test_held_lines_are_not_lost_where_the_clock_cannot_be_read():
    places, count = Places(), StepCount(3, 10.0, 20.0, 24, 1, 0, (note(10, 15.0, 2, 16, 1, 0),))
    assert places.put([line(9)], count) == []
    assert facts(places.put([line(19, epoch=2)], None, final=True)) == [(1, 2, 16), (2, 0, None)]


def test_without_a_loader_a_line_in_each_step_is_that_of_an_epoch():
    notes = tuple(note(10 * n, 10.0 + n, n, 0, 0, 0) for n in range(1, 7))
    events = Places().put(
        [line(10 * n) for n in range(1, 7)], StepCount(7, 10.0, 30.0, notes=notes)
    )
    assert not any(event.each_step for event in events)


def test_the_notes_of_readings_without_rows_are_kept():
    """The clock has the newest only, and a file may be written minutes later."""
    places, early = Places(), note(0, 15.0, 4, 32, 1, 0)
    places.look(StepCount(8, 10.0, 20.0, 64, 2, 2, (early,)))
    late = StepCount(80, 10.0, 200.0, 640, 9, 2, (note(0, 190.0, 76, 608, 9, 0),))
    assert facts(places.put([row(14.0, 1)], late, final=True)) == [(1, 4, 32)]


@pytest.mark.parametrize("notes", [(), (note(0, 190.0, 76, 608, 9, 0),)])
def test_a_row_from_before_the_first_step_is_untrained_however_late_it_is_read(notes):
    count = StepCount(80, 10.0, 200.0, 640, 9, 2, notes)
    (event,) = Places().put([row(9.0, 1)], count)
    assert (event.steps, event.samples, event.counted) == (0, None, True)
    assert event.t == 9.0
