"""Whether a training began anew, by its epochs, its passes over the data and its times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.factories import REACHED, build_trial
from tests.launcher.values import GOAL, LAUNCHED
from zeusrun.metrics.spans import find_first_epoch, is_continued
from zeusrun.sidecar.events import Observed
from zeusrun.trial import CurvePoint

DATA = Observed(100.0, 0, 10, 1, None, (), False, 1000, 100)


def trained(epochs, passes, times=None, **changes):
    """Reports of some epochs, after as many seconds unless ``times`` says it otherwise."""
    curve = tuple(
        CurvePoint(epoch, float(t), None, 0.1)
        for epoch, t in zip(epochs, times or epochs, strict=True)
    )
    samples = None if passes is None else round(1000 * passes)
    return replace(LAUNCHED, curve=curve, samples=samples, observed={0: DATA}, **changes)


@pytest.mark.parametrize(
    ("epochs", "passes", "times"),
    [
        ((5,), 1.0, (1,)),  # it has trained one epoch, and calls it the fifth
        ((4,), 0.96, (1,)),  # a sampler drops the last batch
        ((41, 42, 43), 3.0, (1, 2, 3)),
        ((5, 6), 2.0, (1.2, 2.2)),
        ((5, 7, 9), 6.1, (2, 4, 6)),
        ((41, *range(42, 61)), 19.2, range(1, 21)),
    ],
)
def test_a_report_of_a_later_epoch_than_was_trained_shows_another_runs_checkpoint(
    epochs, passes, times
):
    progress = trained(epochs, passes, times)
    assert is_continued(progress, GOAL)
    # A job that begins there each time begins anew, and zeusrun's own continuation is one run.
    assert not is_continued(replace(progress, begins_at=epochs[0]), GOAL)
    assert not is_continued(progress, replace(GOAL, preemptions=1))
    points = (CurvePoint(1000, 1.0, None, 0.1),)
    assert not is_continued(replace(progress, by_samples=points), GOAL)


@pytest.mark.parametrize(
    ("epochs", "passes"),
    [
        ((1, 2, 3), 3.0),
        ((0, 1, 2), 3.0),
        ((1,), 0.2),  # epochs of a fixed number of steps
        ((5, 10), 10.0),  # it evaluates every five epochs
        ((5, 10), 2.0),  # likewise, of a fifth of the data
        ((5,), 0.5),
        ((4, 9), 10.0),
        ((5,), 5.0),
        ((10, 11, 12), 12.0),  # it evaluates from the tenth on
        (range(10, 40), 37.4),  # likewise, and the last batch is dropped
        (range(10, 21), 10.0),  # of half of the data
        ((10, 12), 9.6),  # every ten epochs and at the end, of 80 %
        ((5, 6), None),  # the data have no known size
    ],
)
def test_a_training_from_the_start_is_none_that_went_on(epochs, passes):
    assert not is_continued(trained(epochs, passes), GOAL)


@pytest.mark.parametrize("steps", [101, 137, 150, 210, 333, 370])
@pytest.mark.parametrize("count", range(1, 8))
def test_an_epoch_that_is_rounded_up_is_none_that_was_missed(steps, count):
    """An evaluation every so many steps, of 100 steps in a pass."""
    done = [n * steps / 100 for n in range(1, count + 1)]
    assert not is_continued(trained([-int(-each // 1) for each in done], done[-1], done), GOAL)


def test_the_first_epoch_is_that_of_all_runs_of_the_same_training():
    def run(number, *epochs, script="a"):
        curve = tuple(CurvePoint(epoch, float(epoch), None, 0.1) for epoch in epochs)
        return build_trial(number, fingerprint={"script": script}).finish(
            replace(REACHED, curve=curve)
        )

    tuned = [run(n, 91, 92) for n in (1, 2)]
    assert find_first_epoch(tuned[0], tuned) == 91
    assert find_first_epoch(tuned[0], [*tuned, run(3, 1, 2)]) is None
    assert find_first_epoch(tuned[0], [*tuned, run(3, 1, 2, script="b"), run(4)]) == 91
    assert find_first_epoch(tuned[0], []) is None
