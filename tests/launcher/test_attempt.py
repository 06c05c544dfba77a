"""What an attempt holds while it is made, and gives back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.factories import build_trial
from tests.history.memory import MemoryHistory
from zeusrun.launcher.attempt import _hold_lease
from zeusrun.launcher.rundir.layout import create_run
from zeusrun.launcher.rundir.ownership import RunLock


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
