"""Which attempts a submit makes one after the other."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from tests.factories import build_trial, load_job
from zeusrun.choice.choose import Attempt
from zeusrun.launcher.recurrence import _may_go_on
from zeusrun.trial import TrialStatus


def test_what_a_speed_check_replaced_is_none_of_the_attempts_that_are_allowed(tmp_path):
    submission = SimpleNamespace(spec=load_job(tmp_path, attempts=2), forced=None)
    replaced = Attempt(replace(build_trial(), status=TrialStatus.CANCELLED), replaced=True)
    made = [replaced]
    for number, more in ((2, True), (3, False)):
        missed = replace(build_trial(attempt=number), status=TrialStatus.MISSED)
        made.append(Attempt(missed, replaced=False))
        assert _may_go_on(submission, made, None) is more
