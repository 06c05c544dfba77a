"""/healthz, /readyz and /metrics."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from tests.factories import DONE, build_trial
from zeusrun.history.sql.store import SqlHistory
from zeusrun.launcher.rundir.layout import Live


def read(text):
    """Return the samples by name and the values of labels; that of the process is left out."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k != "worker"}
            names = sorted(labels, key=lambda name: (name != "job", name != "trial", name))
            found[sample.name, tuple(labels[name] for name in names)] = sample.value
    return found


def test_metrics_count_runs_and_energy_of_each_job(server):
    for number in (1, 2):
        server.begin(build_trial(number))
        server.ask("POST", f"/api/v1/trials/job-{number}-1/outcome", DONE.to_json())
    server.begin(build_trial(3, host="gpu1"))
    live = Live(replace(build_trial(3), epochs=2, whole_epochs=2), 1, "gpu1", None, 250.0).to_json()
    server.ask("PUT", "/api/v1/trials/job-3-1/lease", {"live": live})
    answer = server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = read(answer.body.decode())
    run = ("job", "job-3-1")
    assert found["zeusrun_runs_total", ("job", "REACHED")] == 2
    assert found["zeusrun_energy_joules_total", ("job", "estimated")] == 80
    assert found["zeusrun_last_run_cost_joules", ("job",)] == 100
    assert found["zeusrun_running", ("job",)] == 1
    assert found["zeusrun_run_info", (*run, "gpu1")] == 1
    assert found["zeusrun_run_power_watts", run] == 250
    assert found["zeusrun_run_epoch", run] == 2
    assert ("zeusrun_run_metric", (*run, "accuracy")) not in found
    assert found["zeusrun_run_target_metric", (*run, "accuracy")] == 0.5
    assert 100 < found["zeusrun_run_lease_seconds", run] <= 120
    server.ask("POST", "/api/v1/trials/job-3-1/outcome", DONE.to_json())
    later = read(server.get("/metrics").body.decode())
    assert later["zeusrun_runs_total", ("job", "REACHED")] == 3
    assert ("zeusrun_running", ("job",)) not in later


def test_metrics_are_those_of_the_jobs_that_a_token_covers(server):
    for job in ("team-a", "other"):
        server.begin(build_trial(job=job))
    token = server.create_token("team-*", write=False)
    text = server.get("/metrics", token).body.decode()
    assert "team-a" in text
    assert "other" not in text


def test_a_server_without_its_database_is_alive_and_not_ready(server, monkeypatch):
    from zeusrun.history.base import UnavailableError

    def fail(_self):
        raise UnavailableError("the database postgresql://me@host/x does not respond")

    monkeypatch.setattr(SqlHistory, "identify", fail)
    assert server.get("/healthz").status == 200
    answer = server.get("/readyz")
    assert (answer.status, answer.code) == (503, "unavailable")
    assert int(answer.headers["retry-after"]) >= 1
    assert "postgresql" not in answer.message
