"""What pages show of jobs: the same as the report, kept until the history changes."""

from __future__ import annotations

import dataclasses
import sys

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

import sqlalchemy as sa

from tests.factories import REACHED, begin, build_trial
from tests.server.pages.values import SETTINGS, named, trace
from tests.view.report.values import run
from zeusrun.analysis.amounts import add_up
from zeusrun.errors import LaunchError
from zeusrun.history.base import UnavailableError
from zeusrun.history.sql.engine import writing
from zeusrun.history.sql.schema import TRIALS as TABLE
from zeusrun.history.sql.survey import add_up as add_up_parts
from zeusrun.history.sql.survey import list_heads
from zeusrun.launcher.processes.command import find_torchrun
from zeusrun.server.pages import reports as module
from zeusrun.server.pages.reports import Reports, build_total
from zeusrun.trial import EnergySource, TrialStatus
from zeusrun.view.report.facts import build_facts

TRIALS = [
    run(1, 32, price=0.3, currency="EUR", carbon_g=400.0),
    run(2, 64, 0.5, price=0.2, currency="USD", energy_source=EnergySource.ESTIMATED),
    run(3, 64, None, cost_j=None, status=TrialStatus.LOST, time_s=None, whole_steps=None),
    run(4, 64, None, cost_j=None),
    run(5, 64, 0.5, status=TrialStatus.STOPPED),
]


@pytest.fixture
def reports(store):
    return Reports(store)


def test_the_database_adds_up_what_the_report_adds_up(store):
    store.add([*TRIALS, named("other", run(1, 32))])
    begin(store, build_trial(6))
    found = build_total("job", add_up_parts(store.engine, "job"))
    assert found == add_up("job", TRIALS)
    parts = [part for job in ("job", "other") for part in add_up_parts(store.engine, job)]
    assert build_total("all", parts) == add_up("all", [*TRIALS, run(6, 32)])


def test_a_view_is_the_report_of_the_job(store, reports):
    store.add(TRIALS)
    begin(store, build_trial(6))
    view = reports.view("job")
    assert view.report.facts == build_facts("job", store.trials("job"))
    assert view.runs == 6
    assert reports.view("nosuch") is None


def test_a_view_follows_the_history_and_reads_only_what_changed(store, reports, monkeypatch):
    store.add(TRIALS)
    begin(store, build_trial(6))
    first = reports.view("job")
    assert reports.view("job").report.facts is first.report.facts
    read = []
    changes = store.changes
    monkeypatch.setattr(
        store, "changes", lambda *args: read.append(found := changes(*args)) or found
    )
    store.finish("job-6-1", REACHED)
    store.forget("job-2-1", forgotten=True)
    second = reports.view("job")
    assert second.pictures is not first.pictures
    assert second.report.facts == build_facts("job", store.trials("job"))
    assert [trial.trial for trial in read[0].trials] == ["job-2-1", "job-6-1"]


def test_of_a_long_history_the_sums_count_all_and_the_rest_the_newest(store, reports, monkeypatch):
    monkeypatch.setattr(module, "NEWEST", 3)
    store.add(TRIALS)
    view = reports.view("job")
    assert view.runs == 5
    assert view.report.facts.total == add_up("job", TRIALS)
    assert view.report.facts.reached == 3
    assert len(view.report.facts.recurrences) == 3
    store.add([run(6, 32)])
    assert [each.recurrence for each in reports.view("job").report.facts.recurrences] == [4, 5, 6]


def test_what_has_not_ended_has_no_report_yet(store, reports):
    begin(store, build_trial(1))
    view = reports.view("job")
    assert (view.report, view.runs) == (None, 1)


def test_the_belief_follows_the_settings(store, reports):
    store.add(TRIALS)
    assert "Zeus's own client" in reports.view("job").report.belief.missing
    store.keep_settings("job", "name: [")
    assert "What the policy believes is unknown" in reports.view("job").report.belief.missing
    store.keep_settings("job", SETTINGS)
    belief = reports.view("job").report.belief
    assert [arm.global_batch_size for arm in belief.arms] == [32, 64, 128]
    assert reports.view("job").report.belief is belief


def test_a_belief_needs_no_torch(store, reports, monkeypatch):
    store.add(TRIALS)
    store.keep_settings("job", SETTINGS)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(LaunchError, match="torch is not installed"):
        find_torchrun()
    assert reports.view("job").report.belief.arms


def test_an_outage_leaves_no_trace(store, reports, monkeypatch):
    store.add([TRIALS[0], *(named(f"job-{n}", run(1, 32)) for n in range(3))])

    def fail(*_):
        raise UnavailableError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(store, "changes", fail)
        assert reports.digests(list_heads(store.engine), 30) == {}
    assert len(reports.digests(list_heads(store.engine), 30)) == 4
    store.add([run(6, 32)])
    with monkeypatch.context() as patch:
        patch.setattr(module, "NEWEST", 1)
        patch.setattr(module, "add_up", fail)
        with pytest.raises(UnavailableError):
            reports.view("job")
    assert len(reports.view("job").report.facts.recurrences) == 2


def test_power_is_that_of_the_newest_runs_and_a_damaged_trace_is_none(store, reports):
    store.add(TRIALS)
    for number in (1, 2):
        store.keep_trace(f"job-{number}-1", trace().to_json())
    store.keep_trace("job-4-1", {"spans": "x"})
    assert [each.trial for each in reports.view("job").report.power] == ["job-1-1", "job-2-1"]


def test_digests_follow_the_history(store, reports):
    store.add([*TRIALS, named("other", run(1, 32))])
    found = reports.digests(list_heads(store.engine), 30)
    assert set(found) == {"job", "other"}
    assert build_total("job", found["job"].parts) == add_up("job", TRIALS)
    assert found["job"].net == build_facts("job", TRIALS).net
    assert found["other"].savings.share is None
    store.add([named("other", run(2, 64, 0.5))])
    assert reports.digests(list_heads(store.engine), 30)["other"].savings.share.value > 0
    assert reports.digests([], 0) == {}


def test_a_damaged_trial_costs_no_other_job_its_digest(store, reports):
    store.add([run(1, 32), named("other", run(1, 32))])
    with writing(store.engine) as connection:
        connection.execute(sa.update(TABLE).where(TABLE.c.job == "job").values(record="{}"))
    found = reports.digests(list_heads(store.engine), 30)
    assert [part.runs for part in found["other"].parts] == [1]
    assert found["job"].parts == ()


def test_a_late_result_of_an_old_run_is_in_the_sums(store, reports, monkeypatch):
    monkeypatch.setattr(module, "NEWEST", 2)
    lost = run(1, 32, None, status=TrialStatus.LOST, cost_j=None, time_s=None, uuid="a" * 32)
    store.add([lost, *(run(n, 32) for n in (2, 3, 4))])
    assert reports.view("job").report.facts.total.energy_j == 3 * 3.6e6
    store.add([dataclasses.replace(run(1, 32), uuid="a" * 32)])
    assert reports.view("job").report.facts.total.energy_j == 4 * 3.6e6
