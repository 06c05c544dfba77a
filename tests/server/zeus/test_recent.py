"""The newest trials, of which only what changed is read again."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")

from tests.factories import DONE, begin, build_trial
from zeusrun.server.zeus import recent
from zeusrun.server.zeus.recent import RecentTrials


class Counting:
    def __init__(self, history):
        self._history, self.read = history, 0

    def changes(self, job, after, last):
        changes = self._history.changes(job, after, last)
        self.read += len(changes.trials)
        return changes


def test_a_snapshot_is_that_of_the_history_and_reads_what_changed(history):
    counting = Counting(history)
    trials = RecentTrials(counting)
    for number in range(1, 4):
        begin(history, build_trial(number))
    assert trials.snapshot("job") == history.snapshot("job")
    history.finish("job-2-1", DONE)
    begin(history, build_trial(4))
    assert trials.snapshot("job") == history.snapshot("job")
    assert trials.snapshot("job") == history.snapshot("job")
    assert counting.read == 3 + 2
    assert trials.snapshot("other").trials == ()


def test_it_keeps_the_newest_trials_of_few_jobs(history, monkeypatch):
    monkeypatch.setattr(recent, "NEWEST", 2)
    monkeypatch.setattr(recent, "_MOST_JOBS", 1)
    counting = Counting(history)
    trials = RecentTrials(counting)
    for number in range(1, 4):
        begin(history, build_trial(number))
        assert len(trials.snapshot("job").trials) <= 2
    assert trials.snapshot("job") == history.snapshot("job", 2)
    trials.snapshot("other")
    before = counting.read
    assert trials.snapshot("job") == history.snapshot("job", 2)
    assert counting.read == before + 2
