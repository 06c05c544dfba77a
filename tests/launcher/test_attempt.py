"""What an attempt holds while it is made, and gives back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.factories import PREEMPTED, begin, build_trial, load_job
from tests.history.memory import MemoryHistory
from zeusrun.choice.choose import Attempt
from zeusrun.errors import LaunchError
from zeusrun.launcher.attempt import _announce, _finish_if_it_fails, _hold_lease
from zeusrun.launcher.events import Noted
from zeusrun.launcher.rundir.layout import create_run
from zeusrun.launcher.rundir.ownership import RunLock
from zeusrun.redaction import Mask
from zeusrun.sidecar.events import Reported, encode_event
from zeusrun.trial import TrialStatus


@pytest.mark.parametrize(
    ("continued", "trained", "status"),
    [
        (True, False, TrialStatus.PREEMPTED),
        (True, True, TrialStatus.FAILED),
        (False, False, TrialStatus.FAILED),
    ],
)
def test_a_preempted_trial_that_cannot_be_started_again_can_still_be_continued_later(
    tmp_path, continued, trained, status
):
    paths, history = create_run(tmp_path, "job", "job-1-1"), MemoryHistory()
    trial = build_trial(run_dir=str(paths.run_dir))
    begin(history, trial)
    if continued:
        trial = history.finish(trial.trial, PREEMPTED).resume("2026-01-02T00:00:00Z")
        begin(history, trial)
    if trained:
        reports = [Reported(100.0 + n, n, {"accuracy": 0.1}) for n in (4, 5)]
        paths.sidecar.write_bytes(b"".join(map(encode_event, reports)))
    begun = SimpleNamespace(trial=trial, paths=paths, mask=Mask(()))
    with (
        pytest.raises(LaunchError),
        _finish_if_it_fails(SimpleNamespace(history=history), begun),
    ):
        raise LaunchError("torchrun is not installed")
    found = history.find(trial.trial)
    assert found.status is status
    assert found.reason == "zeusrun could not run it: torchrun is not installed"


@pytest.mark.parametrize("replaced", [False, True])
def test_an_attempt_after_a_speed_check_is_not_called_another_try(tmp_path, replaced):
    paths, said = create_run(tmp_path, "job", "job-1-2"), []
    choice = SimpleNamespace(
        about_history=(), note=None, too_large=None, earlier=(),
        decision=SimpleNamespace(cost_bound_j=None),
    )  # fmt: skip
    begun = SimpleNamespace(trial=build_trial(1, 2), choice=choice, paths=paths, emit=said.append)
    made = [Attempt(build_trial(status=TrialStatus.CANCELLED), replaced=replaced)]
    _announce(SimpleNamespace(spec=load_job(tmp_path, attempts=3)), begun, made)
    notes = [event.text for event in said if isinstance(event, Noted)]
    assert notes == ([] if replaced else ["trying again with batch size 32, attempt 2 of 3"])


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_the_lease_is_held_until_the_attempt_ends_however_it_ends(tmp_path, error):
    paths = create_run(tmp_path, "job", "job-1-1")
    begun = SimpleNamespace(trial=build_trial(), paths=paths, lease=RunLock(paths))
    assert begun.lease.acquire()
    try:
        with _hold_lease(SimpleNamespace(history=MemoryHistory()), begun):
            assert RunLock(paths).is_held()
            if error is not None:
                raise error
    except KeyboardInterrupt:
        assert error is not None
    assert not RunLock(paths).is_held()
