"""The queries of pages: each reads what it shows."""

from __future__ import annotations

import pytest

from tests.databases import opened
from tests.factories import REACHED, begin, build_trial
from tests.view.report.values import run
from zeusrun.history.sql import survey
from zeusrun.trial import TrialStatus


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


def names(store, jobs=("job",), count=10, **wanted):
    """Return the names and the number of the runs that a list shows."""
    trials, total = survey.list_runs(store.engine, jobs, survey.Wanted(**wanted), count)
    return [trial.trial for trial in trials], total


def test_pages_of_runs_of_several_jobs_repeat_and_omit_none(store):
    jobs = [f"many-{number}" for number in range(8)]
    store.add([build_trial(1, job=job, host="same") for job in jobs])
    for sort in ("when", "host", "status", "run"):
        found = []
        for page in range(1, 5):
            found += names(store, jobs, count=2, page=page, sort=sort)[0]
        assert sorted(found) == [f"{job}-1-1" for job in jobs]


def test_jobs_are_listed_by_the_start_of_their_newest_run(store):
    store.add([build_trial(1, job="later", started_at="2030-01-01T00:00:00Z")])
    store.add([build_trial(1, job="sooner", started_at="2029-01-01T00:00:00Z")])
    heads = [head.job for head in survey.list_heads(store.engine)]
    assert heads.index("later") < heads.index("sooner")


def test_runs_come_in_pages_the_newest_first(store):
    assert names(store, count=2) == (["job-3-1", "job-2-1"], 3)
    for page in (2, 3, 10**6):
        assert names(store, count=2, page=page) == (["job-1-1"], 3)
    assert names(store, ["nosuch"]) == names(store, []) == ([], 0)
    assert survey.read_first(store.engine, "job").trial == "job-1-1"
    assert survey.read_first(store.engine, "nosuch") is None


def test_runs_are_sorted_and_what_is_unknown_comes_last(store):
    store.add([run(n, 32, cost, host=host) for n, cost, host in ((4, 2.0, "b"), (5, 9.0, None))])
    for sort in survey.SORTS:
        for descending in (True, False):
            assert names(store, None, sort=sort, descending=descending)[1] == 6
    assert names(store, sort="cost", descending=True)[0][:2] == ["job-5-1", "job-4-1"]
    assert names(store, sort="cost", descending=False)[0][-1] == "job-3-1"  # it runs
    assert names(store, sort="host", descending=False)[0][0] == "job-4-1"
    assert names(store, sort="run", descending=False)[0] == [f"job-{n}-1" for n in range(1, 6)]


def test_runs_are_found_by_words_of_their_columns(store):
    found = {"host": "Node_1", "gpu_model": "NVIDIA H100"}
    store.add([run(4, 256, status=TrialStatus.STOPPED, **found), run(5, 64, host="Node-1")])
    for words in (
        "stopped",
        "256",
        "node_1",  # no character is a wildcard
        "h100",
        "b-4",
        "STOPPED 256 Node",
    ):
        assert names(store, words=tuple(words.split())) == (["job-4-1"], 1)
    assert names(store, words=("node",))[1] == 2
    assert names(store, words=("node", "512")) == ([], 0)
    assert names(store, ["other"], words=("running",)) == (["other-1-1"], 1)


def test_a_run_whose_values_fit_no_column_is_listed(store):
    odd = {"host": "a\0b", "gpu_model": "x" * 500, "started_at": "no time"}
    store.add([run(4, 64, **odd)])
    assert names(store)[0][0] == "job-4-1"
    assert names(store, words=("xx",))[0] == ["job-4-1"]


def test_traces_are_those_of_the_newest_trials_oldest_first(store):
    for number in (1, 2, 3):
        store.keep_trace(f"job-{number}-1", {"n": number})
    assert list(survey.list_traces(store.engine, "job", 0, 2).values()) == [{"n": 2}, {"n": 3}]
    assert survey.list_traces(store.engine, "job", 10**6, 2) == {}


def test_the_version_of_a_job_changes_with_its_trials_and_their_heartbeats(store):
    def versions():
        read = survey.read_versions(store.engine)
        both = read.of_jobs("*"), read.of_jobs("j*")
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
