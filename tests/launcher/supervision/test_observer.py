"""What one poll of a running trial shows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.launcher.values import GOAL, LAUNCHED, ended, report, started, ten_watts
from zeusrun.launcher.events import Messages
from zeusrun.launcher.supervision.supervised import RunObserver, first_progress
from zeusrun.metrics.seen import Ranks
from zeusrun.sidecar.events import Spawned
from zeusrun.trial import CurvePoint


def test_an_epoch_has_come_whatever_was_read_after_it():
    ranks = SimpleNamespace(find_others=lambda *_: [], count=lambda: None, take=lambda _event: None)
    events = [report(101.0, 1, 0.1), ended(102.0)]
    source = SimpleNamespace(read=lambda *, final: events, warnings=())
    observer = RunObserver(GOAL, {"sidecar": source}, ranks, Messages(lambda _event: None))
    assert observer.observe(LAUNCHED, ten_watts).reported


@pytest.mark.parametrize("t", [0.5, 1.0, 7.0, 7.5])
def test_a_time_that_cannot_be_of_this_run_is_replaced_by_that_of_arrival(monkeypatch, t):
    """The run was launched at 1 s and reads at 7 s."""
    clock = SimpleNamespace(monotonic=lambda: 7.0)
    monkeypatch.setattr("zeusrun.launcher.supervision.supervised.time", clock)
    taken, messages = [], Messages(lambda _event: None)
    ranks = SimpleNamespace(find_others=lambda *_: [], count=lambda: None, take=taken.append)
    source = SimpleNamespace(read=lambda *, final: [started(t)], warnings=())
    observer = RunObserver(GOAL, {"sidecar": source}, ranks, messages)
    before = replace(LAUNCHED, launched_t=1.0, now_t=7.0)
    wrong = t in {0.5, 7.5}
    assert observer.observe(before, ten_watts).progress.script_t == (7.0 if wrong else t)
    assert (len(messages.warnings), taken) == (wrong, [started(t)])


def test_a_continued_trial_starts_with_what_its_earlier_part_has_reported():
    spec = SimpleNamespace(
        metrics=SimpleNamespace(source="auto"),
        batch_size=SimpleNamespace(default=32, apply="dataloader"),
    )
    first = first_progress(spec, GOAL, [])
    assert (first.seen, first.earlier, first.best_value) == ({}, (), None)
    assert (first.preferred, first.replaced, first.ranks) == ("auto", 32, Ranks(GOAL.world_size))
    curve = (CurvePoint(0, 0.0, 0.0, 0.1), CurvePoint(1, 2.0, 20.0, 0.3))
    again = first_progress(spec, replace(GOAL, curve=curve, best_metric=0.3), [])
    assert (again.seen_metrics, again.earlier, again.best_value) == ({GOAL.metric}, (1,), 0.3)
    spec.batch_size.apply = "args"
    assert first_progress(spec, GOAL, []).replaced is None


def test_ranks_of_the_script_are_not_looked_for_once_one_is_known_or_a_step_is_seen():
    looks = []
    ranks = SimpleNamespace(
        find_others=lambda *times: looks.append(times) or [],
        count=lambda: None,
        take=lambda _event: None,
    )
    observer = RunObserver(GOAL, {}, ranks, Messages(lambda _event: None))
    observer.observe(LAUNCHED, ten_watts)
    assert looks == [(LAUNCHED.now_t, LAUNCHED.launched_t)]
    known = Ranks(1).take(Spawned(102.0, 7, 2))
    observer.observe(replace(LAUNCHED, ranks=known), ten_watts)
    observer.observe(replace(LAUNCHED, steps=1), ten_watts)
    observer.observe(LAUNCHED, ten_watts, final=True)
    assert len(looks) == 1
