"""How long a running trial still takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.launcher.values import GOAL, LAUNCHED
from zeusrun.analysis.usual import UNKNOWN
from zeusrun.trial import CurvePoint
from zeusrun.view.live import estimate_remaining

CURVE = (CurvePoint(1, 4.0, 40.0, 0.1), CurvePoint(2, 6.0, 60.0, 0.2))
SEEN = replace(
    LAUNCHED, training_t=101.0, now_t=108.0, epochs=2, curve=CURVE, steps=20, step_times_s=(0.3,)
)
UNSEEN = replace(SEEN, steps=None, step_times_s=())


@pytest.mark.parametrize(
    ("progress", "usual", "remaining"),
    [
        # 3 s an epoch, 1 s of the third has gone: 5 epochs at most, 4 usually
        (SEEN, None, (8.0, True)),
        (SEEN, 4.0, (5.0, False)),
        (SEEN, 2.0, (8.0, True)),  # it takes longer than usual
        (replace(SEEN, now_t=201.0), 4.0, (0.0, False)),
        # where no steps are seen, the first epoch includes the start
        (UNSEEN, 4.0, (3.0, False)),
        (replace(UNSEEN, curve=CURVE[1:]), 4.0, None),
        # of a continued trial, only the epochs of this part show the duration
        (replace(SEEN, earlier=(1,), curve=CURVE[1:]), 4.0, (11.0, False)),
        (replace(SEEN, earlier=(1, 2)), 4.0, (5.0, False)),  # it began anew
        (replace(SEEN, curve=()), 4.0, None),
        (replace(SEEN, step_times_s=()), 4.0, None),
        (replace(SEEN, training_t=None), 4.0, None),
        (replace(SEEN, counted=True), 4.0, None),  # numbers of reports, not epochs
        (replace(SEEN, by_samples=CURVE), 4.0, None),
        (LAUNCHED, 4.0, None),
    ],
)
def test_what_is_left_is_the_rest_of_the_usual_epochs_at_the_pace_of_this_run(
    progress, usual, remaining
):
    found = estimate_remaining(GOAL, progress, replace(UNKNOWN, epochs=usual))
    assert found == (remaining and (pytest.approx(remaining[0]), *remaining[1:]))


def test_a_continued_trial_by_samples_shows_no_epochs():
    assert estimate_remaining(replace(GOAL, by_samples=CURVE), SEEN, UNKNOWN) is None
