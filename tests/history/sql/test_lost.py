"""What is known of a trial whose lease has expired."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("sqlalchemy")

from tests.factories import begin, build_trial
from zeusrun.trial import CurvePoint, TrialStatus


def test_a_lost_trial_keeps_what_its_launcher_reported(sql_history):
    trial = begin(sql_history, build_trial(uuid="0" * 32))
    seen = dataclasses.replace(trial, time_s=5.0, epochs=1, curve=(CurvePoint(1, 5.0, None, 0.3),))
    sql_history.renew(trial.trial, {**seen.to_json(), "alive": True}, lease_s=-1)
    (lost,) = sql_history.expire()
    assert (lost.status, lost.time_s, lost.curve) == (TrialStatus.LOST, 5.0, seen.curve)


@pytest.mark.parametrize("live", [None, {}, {"trial": "job-1-1"}, {"trial": None, "curve": 7}])
def test_what_cannot_be_read_is_left_out(sql_history, live):
    trial = begin(sql_history, build_trial())
    sql_history.renew(trial.trial, live, lease_s=-1)
    (lost,) = sql_history.expire()
    assert (lost.status, lost.time_s) == (TrialStatus.LOST, None)


def test_what_another_trial_reported_is_left_out(sql_history):
    trial = begin(sql_history, build_trial(uuid="0" * 32))
    other = dataclasses.replace(trial, uuid="1" * 32, time_s=5.0)
    sql_history.renew(trial.trial, other.to_json(), lease_s=-1)
    assert sql_history.expire()[0].time_s is None
