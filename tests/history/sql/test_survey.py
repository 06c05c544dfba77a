"""The queries of pages: each reads what it shows."""

from __future__ import annotations

import pytest

from tests.databases import opened
from tests.factories import REACHED, begin, build_trial
from tests.view.report.values import run
from zeusrun.history.sql import survey


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request):
    if request.param == "sqlite":
        yield filled(request.getfixturevalue("sql_history"))
    else:
        for history in opened(request.getfixturevalue("postgres_url")):
            yield filled(history)


def filled(store):
    for number in (1, 2, 3):
        begin(store, build_trial(number))
        if number < 3:
            store.finish(f"job-{number}-1", REACHED)
    begin(store, build_trial(1, job="other"))
    return store


def test_jobs_come_with_that_of_the_newest_trial_first(store):
    heads = survey.list_heads(store.engine)
    assert [(head.job, head.changes, head.runs) for head in heads] == [
        ("other", 1, 1),
        ("job", 5, 3),
    ]
    newest = survey.read_numbers(store.engine, [head.newest for head in heads])
    assert sorted(trial.trial for trial in newest.values()) == ["job-3-1", "other-1-1"]
    assert survey.read_numbers(store.engine, []) == {}


def test_running_trials_come_with_what_was_sent_and_the_rest_of_the_lease(store):
    store.renew("job-3-1", {"power_w": 3.0})
    found = survey.list_running(store.engine)
    assert [job for _, job in found] == ["job", "other"]
    first, second = survey.read_running(store.engine, [number for number, _ in found])
    assert (first.trial.trial, first.live) == ("job-3-1", {"power_w": 3.0})
    assert 100 < first.lease_left_s <= 120
    assert second.live == {}
    (named,) = survey.read_running(store.engine, "job-3-1")
    assert named.trial == first.trial
    assert survey.read_running(store.engine, "job-1-1") == []


def test_runs_come_in_pages_the_newest_first(store):
    first = survey.list_runs(store.engine, "job", 2)
    assert [trial.recurrence for trial in first] == [3, 2]
    second = survey.list_runs(store.engine, "job", 2, before=first[-1].trial)
    assert [trial.recurrence for trial in second] == [1]
    assert survey.read_first(store.engine, "job") == second[0]
    (foreign,) = survey.list_runs(store.engine, "other", 1)
    assert survey.list_runs(store.engine, "job", 2, before=foreign.trial) == []
    assert survey.read_first(store.engine, "nosuch") is None


def test_traces_are_those_of_the_newest_trials_oldest_first(store):
    for number in (1, 2, 3):
        store.keep_trace(f"job-{number}-1", {"n": number})
    assert list(survey.list_traces(store.engine, "job", 0, 2).values()) == [{"n": 2}, {"n": 3}]
    assert survey.list_traces(store.engine, "job", 10**6, 2) == {}


def test_the_version_of_a_job_changes_with_its_trials_and_their_heartbeats(store):
    def versions():
        read = survey.read_versions(store.engine)
        both = read.of_jobs("*"), read.of_jobs("j*, nosuch")
        return read.of("job"), read.of("other"), *both

    before = versions()
    assert versions() == before
    store.renew("job-3-1", {})
    beaten = versions()
    assert [now == then for now, then in zip(beaten, before, strict=True)] == [
        *(False, True, False, False),
    ]
    store.finish("job-3-1", REACHED)
    ended = versions()
    assert ended[0] not in {before[0], beaten[0]}
    store.report_host("node", {})
    assert [now == then for now, then in zip(versions(), ended, strict=True)] == [
        *(True, True, False, True),
    ]
    assert survey.read_versions(store.engine).of("nosuch") == ""


def test_sums_come_by_currency_source_and_status(store):
    store.add([run(4, 32, price=2.0, currency="EUR"), run(5, 32, price=1.0, currency="EUR")])
    parts = {part.currency: part for part in survey.add_up(store.engine, "job")}
    assert (parts["EUR"].runs, parts["EUR"].status, parts["EUR"].trained) == (2, "REACHED", 2)
    assert parts["EUR"].sums["price"] == 3.0
    assert parts["EUR"].known["carbon_g"] == 0
    assert parts[None].runs == 2
    assert survey.add_up(store.engine, "nosuch") == []
