"""What one poll of a running trial shows."""

from __future__ import annotations

from types import SimpleNamespace

from tests.launcher.values import GOAL, LAUNCHED, ended, report, ten_watts
from zeusrun.launcher.events import Messages
from zeusrun.launcher.supervision.observer import RunObserver


def test_an_epoch_has_come_whatever_was_read_after_it():
    ranks = SimpleNamespace(
        find_others=lambda _progress: [], count=lambda: None, take=lambda _event: None
    )
    events = [report(101.0, 1, 0.1), ended(102.0)]
    source = SimpleNamespace(read=lambda *, final: events, warnings=())
    observer = RunObserver(GOAL, {"sidecar": source}, ranks, Messages(lambda _event: None))
    assert observer.observe(LAUNCHED, ten_watts).reported
