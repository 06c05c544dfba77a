"""What one poll of a running trial shows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from tests.launcher.values import GOAL, LAUNCHED, ended, report, ten_watts
from zeusrun.launcher.events import Messages
from zeusrun.launcher.supervision.observer import RunObserver
from zeusrun.metrics.seen import Ranks
from zeusrun.sidecar.events import Spawned


def test_an_epoch_has_come_whatever_was_read_after_it():
    ranks = SimpleNamespace(find_others=lambda *_: [], count=lambda: None, take=lambda _event: None)
    events = [report(101.0, 1, 0.1), ended(102.0)]
    source = SimpleNamespace(read=lambda *, final: events, warnings=())
    observer = RunObserver(GOAL, {"sidecar": source}, ranks, Messages(lambda _event: None))
    assert observer.observe(LAUNCHED, ten_watts).reported


def test_ranks_of_the_script_are_not_looked_for_once_one_is_known_or_a_step_is_seen():
    looks = []
    ranks = SimpleNamespace(
        find_others=lambda *times: looks.append(times) or [],
        count=lambda: None,
        take=lambda _event: None,
    )
    observer = RunObserver(GOAL, {}, ranks, Messages(lambda _event: None))
    observer.observe(LAUNCHED, ten_watts)
    assert len(looks) == 1
    known = Ranks(1).take(Spawned(102.0, 7, 2))
    observer.observe(replace(LAUNCHED, ranks=known), ten_watts)
    observer.observe(replace(LAUNCHED, steps=1), ten_watts)
    observer.observe(LAUNCHED, ten_watts, final=True)
    assert len(looks) == 1
