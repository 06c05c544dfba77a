"""Runs in MLflow: their values, and a real store in the long tier."""

from __future__ import annotations

import http.server
import socket
import threading
from dataclasses import replace

import pytest

from tests.factories import DONE, PREEMPTED, REACHED, build_trial
from tests.runs import check_that_it_imports
from zeusrun.errors import ExportError, UsageError
from zeusrun.export.mlflow import (
    _as_one_sentence,
    _check_store,
    export_runs,
    masked,
    metric_key,
    run_values,
)
from zeusrun.trial import CurvePoint, TrialStatus


def test_a_run_has_params_metrics_a_curve_and_tags():
    outcome = replace(REACHED, startup_s=2.0, price=0.5, currency="EUR", carbon_g=20.0)
    trial = build_trial(1, learning_rate=0.1, host="node7").finish(outcome)
    values = run_values(trial)
    assert values.params == {"batch_size": "32", "learning_rate": "0.1", "stage": "explore"}
    last = {key: value for key, value, _, _ in values.metrics if key != "accuracy"}
    assert last == {
        "cost_j": 486.25,
        "energy_j": 420.0,
        "time_s": 8.5,
        "startup_s": 2.0,
        "epochs": 3,
        "steps": 84,
        "whole_steps": 84,
        "price": 0.5,
        "carbon_g": 20.0,
        "best_accuracy": 0.96,
    }
    (curve,) = [point for point in values.metrics if point[0] == "accuracy"]
    assert curve == ("accuracy", 0.8, values.began_ms + 4500, 1)  # the second one is not finite
    assert values.tags["zeusrun.trial"] == "job-1-1"
    assert values.tags["zeusrun.status"] == "REACHED"
    assert values.tags["zeusrun.currency"] == "EUR"
    assert "zeusrun.gpu_model" not in values.tags
    assert (values.status, values.ended_ms - values.began_ms) == ("FINISHED", 9000)


def test_the_steps_of_a_run_that_reports_within_epochs_are_samples():
    points = tuple(CurvePoint(100 * n, 1.0 * n, None, 0.2 * n) for n in (1, 2, 3))
    outcome = replace(REACHED, samples=200, whole_samples=300, by_samples=points)
    values = run_values(build_trial(1, target=0.35).finish(outcome), "samples")
    assert [(v, step) for key, v, _, step in values.metrics if key == "accuracy"] == [
        (0.2, 100),
        (0.4, 200),
        (pytest.approx(0.6), 300),
    ]
    assert ("samples", 200, values.ended_ms, 200) in values.metrics
    assert values.tags["zeusrun.step"] == "samples"
    unknown = run_values(build_trial(1).finish(replace(REACHED, whole_steps=None)), "samples")
    assert not [key for key, *_ in unknown.metrics if key == "accuracy"]


@pytest.mark.parametrize(
    ("status", "theirs"),
    [("MISSED", "FINISHED"), ("STOPPED", "KILLED"), ("OOM", "FAILED"), ("LOST", "FAILED")],
)
def test_a_status_is_one_of_mlflows(status, theirs):
    outcome = replace(DONE, status=TrialStatus(status))
    assert run_values(build_trial(1).finish(outcome)).status == theirs


def test_a_long_tag_is_cut():
    trial = build_trial(1).finish(replace(DONE, reason="x" * 9000))
    assert len(run_values(trial).tags["zeusrun.reason"]) == 500


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("val/acc", "val/acc"),
        ("acc@1 (%)", "acc_1 ___"),
        ("/acc", "_acc"),
        ("a//b", "a__b"),
        ("..", "__"),
        ("x" * 300, "x" * 250),
    ],
)
def test_the_name_of_a_metric_is_one_that_mlflow_takes(name, key):
    assert metric_key(name) == key


def test_a_password_is_not_shown():
    assert masked("https://me:secret@host/x") == "https://***@host/x"


def test_a_server_that_does_not_run_is_one_sentence_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # it does not listen
        uri = f"http://me:secret@127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ExportError, match=r"cannot be reached: .*refused") as told:
            export_runs(uri, "job", [])
    assert "secret" not in str(told.value)


def test_a_folder_that_is_not_there_is_told_at_once(tmp_path):
    with pytest.raises(UsageError, match=r"no database can be written at .*none/m\.db"):
        export_runs(f"sqlite:///{tmp_path}/none/m.db", "job", [])


def test_without_mlflow_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match="needs mlflow; install zeusrun with its extra 'mlflow'"):
        export_runs("sqlite:///m.db", "job", [])


def interrupted(*_arguments, **_named):
    raise KeyboardInterrupt


def close_stores():
    """Close the databases, which MLflow keeps open until its process ends."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for engine in SqlAlchemyStore._engine_map.values():
        engine.dispose()
    SqlAlchemyStore._engine_map.clear()


@pytest.mark.long
def test_a_real_store_holds_every_run_once(tmp_path, monkeypatch, request):
    check_that_it_imports("mlflow")
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/m.db"
    request.addfinalizer(close_stores)
    curve = tuple(CurvePoint(epoch, float(epoch), None, epoch / 2000) for epoch in range(1, 1501))
    lost = build_trial(3).finish(replace(DONE, status=TrialStatus.LOST, reason="it died"))
    trials = [
        build_trial(1, metric="val/acc@1").finish(replace(REACHED, curve=curve)),
        build_trial(2).finish(PREEMPTED),
        lost,
        build_trial(4),
        build_trial(1, started_at="2025-06-02T12:00:00Z").finish(DONE),  # of another home
    ]
    with monkeypatch.context() as patched:  # an export that is interrupted
        patched.setattr(MlflowClient, "log_batch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            export_runs(uri, "job", trials)
    assert export_runs(uri, "job", trials) == {"new": 2, "changed": 1}
    assert export_runs(uri, "job", trials) == {"already there": 3}

    trials[2] = replace(lost, status=TrialStatus.REACHED, best_metric=0.9)  # it came late
    assert export_runs(uri, "job", trials) == {"changed": 1, "already there": 2}
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("job").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([experiment])}
    assert len(client.search_runs([experiment])) == 3
    late = runs["job-3-1"]
    assert (late.info.status, late.data.tags["zeusrun.status"]) == ("FINISHED", "REACHED")
    assert late.data.metrics["best_accuracy"] == 0.9
    steps = [run for run in client.search_runs([experiment]) if "val/acc_1" in run.data.metrics]
    history = client.get_metric_history(steps[0].info.run_id, "val/acc_1")
    assert [(point.step, point.value) for point in history] == [(p.epoch, p.value) for p in curve]

    client.delete_experiment(experiment)
    with pytest.raises(ExportError, match="Current state is deleted"):
        export_runs(uri, "job", trials)
    (tmp_path / "bad.db").write_text("this is no database" * 100)
    with pytest.raises(ExportError, match="file is not a database"):
        export_runs("sqlite:///bad.db", "job", trials)


def test_a_folder_in_the_place_of_a_database_is_told_before_mlflow_is_loaded(tmp_path):
    with pytest.raises(UsageError, match="no database can be written"):
        _check_store(f"sqlite:///{tmp_path}")


def test_an_error_of_mlflow_is_one_sentence_that_says_what_stays():
    text = "x://me:secret@y answered\n" + "with much text " * 100
    with pytest.raises(ExportError) as told, _as_one_sentence("x://me:secret@y"):
        raise ValueError(text)
    assert "to x://***@y failed: x://***@y answered with much text" in str(told.value)
    assert str(told.value).endswith(
        "…; check --uri. Exported runs stay there; export again to add the others"
    )
    assert len(str(told.value)) < 700


@pytest.mark.long
def test_a_server_that_is_no_mlflow_is_one_sentence():
    check_that_it_imports("mlflow")
    with http.server.HTTPServer(
        ("127.0.0.1", 0), http.server.BaseHTTPRequestHandler
    ) as server:  # it answers 501 to everything
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(ExportError, match="check --uri") as told:
            export_runs(f"http://127.0.0.1:{server.server_port}", "job", [])
        server.shutdown()
    assert "\n" not in str(told.value)
