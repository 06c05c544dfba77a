"""What Kubeflow Trainer is told of a training, and that it never disturbs one."""

from __future__ import annotations

import json
import math
import shutil
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.factories import DONE, build_trial
from tests.runs import wait_for
from zeusrun.analysis.usual import UNKNOWN, Usual
from zeusrun.export import kubeflow
from zeusrun.export.kubeflow import StatusReporter, build_status
from zeusrun.launcher.events import Advanced, Noted, TrialEnded, TrialStarts
from zeusrun.metrics.progress import Progress
from zeusrun.trial import CurvePoint, SizeChange, TrialStatus

CURVE = (CurvePoint(1, 2.0, None, 0.3), CurvePoint(2, 4.0, None, 0.4))
GOES = Progress(
    launched_t=0.0,
    now_t=10.0,
    training_t=5.0,
    curve=CURVE,
    epochs=2,
    last_value=0.4,
    energy_j=40.0,
    cost_j=100.25,
)


def metrics(status):
    return {each["name"]: each["value"] for each in status["metrics"]}


def check_model(status):
    """Check a status against the model and the limits of Kubeflow Trainer."""
    from kubeflow_trainer_api import models  # takes a second

    json.loads(json.dumps(status, allow_nan=False))
    model = models.TrainerV1alpha1TrainerStatus
    read = model.from_dict(status)
    assert read.to_dict().keys() == status.keys()
    assert status.keys() <= {each.alias or name for name, each in model.model_fields.items()}
    assert 0 <= status.get("progressPercentage", 0) <= 100
    assert 0 <= status.get("estimatedRemainingSeconds", 0) < 2**31
    assert len(status["metrics"]) <= 256
    for each in status["metrics"]:
        assert each.keys() == {"name", "value"}
        assert all(1 <= len(text) <= 64 for text in each.values())


@pytest.mark.parametrize(
    ("trial", "progress", "usual", "expected"),
    [
        (build_trial(max_epochs=5), GOES, UNKNOWN, (40, 5)),
        (build_trial(max_epochs=5), GOES, Usual(epochs=4.0), (50, 3)),
        (build_trial(max_epochs=5), GOES, Usual(epochs=1.0), (40, 5)),
        (build_trial(max_epochs=2), GOES, UNKNOWN, (99, 0)),  # it has not ended
        (build_trial(max_epochs=10**12), GOES, UNKNOWN, (0, 2**31 - 1)),
        (build_trial(), Progress(launched_t=0.0, now_t=1.0), UNKNOWN, (None, None)),
        (build_trial(), None, UNKNOWN, (None, None)),
        (build_trial().finish(DONE), None, UNKNOWN, (100, 0)),
    ],
)
def test_progress_and_the_rest_are_estimated_where_they_can(trial, progress, usual, expected):
    status = build_status(trial, progress, usual)
    check_model(status)
    keys = ("progressPercentage", "estimatedRemainingSeconds")
    assert tuple(status.get(key) for key in keys) == expected


def test_numbers_are_those_of_the_training():
    status = build_status(build_trial(), GOES, UNKNOWN)
    found = {"accuracy": "0.4", "batch_size": "32", "epochs": "2", "energy_j": "40"}
    assert metrics(status) == {**found, "cost_j": "100.25"}
    ended = build_status(build_trial().finish(DONE), None, UNKNOWN)
    assert metrics(ended)["accuracy"] == "0.6"
    assert (metrics(ended)["energy_j"], metrics(ended)["cost_j"]) == ("40", "100")


def test_the_energy_of_a_run_that_was_preempted_counts_from_its_beginning():
    continued = build_trial(max_epochs=5, time_s=3.0, energy_j=60.0)
    assert metrics(build_status(continued, GOES, UNKNOWN))["energy_j"] == "100"
    unmeasured = build_trial(max_epochs=5, time_s=3.0, energy_j=None)
    assert "energy_j" not in metrics(build_status(unmeasured, GOES, UNKNOWN))


def test_what_is_unknown_is_left_out_and_not_0():
    status = build_status(build_trial(), None, UNKNOWN)
    assert metrics(status) == {"batch_size": "32"}


def test_a_training_that_adapts_its_batch_size_tells_the_present_one():
    trial = build_trial(batch_sizes=(SizeChange(0, 32), SizeChange(2, 64)))
    assert metrics(build_status(trial, None, UNKNOWN))["batch_size"] == "64"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1e-300, 0.1 + 0.2])
def test_any_value_is_a_short_text(value):
    progress = Progress(launched_t=0.0, now_t=1.0, last_value=value)
    status = build_status(build_trial(), progress, UNKNOWN)
    check_model(status)
    assert float(metrics(status)["accuracy"]) == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize("name", ["a" * 300, "eval/" + "ü" * 64])
def test_a_long_name_is_cut(name):
    status = build_status(build_trial(metric=name, best_metric=0.5), None, UNKNOWN)
    check_model(status)
    assert metrics(status)[name[:64]] == "0.5"


class Posts:
    """Kubeflow's server: what was posted, and what it answers."""

    def __init__(self, folder) -> None:
        self.found: list[tuple[str, dict]] = []
        self.code = 200
        self._server = HTTPServer(("127.0.0.1", 0), _Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "leaf.crt", folder / "leaf.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.posts = self
        self.url = f"https://127.0.0.1:{self._server.server_port}/status"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def epochs(self):
        found = [metrics(body["trainerStatus"]).get("epochs") for _, body in self.found]
        return [None if each is None else int(each) for each in found]


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posts.found.append((self.headers["Authorization"], body))
        self.send_response(self.server.posts.code)
        self.end_headers()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """An authority, and a server of 127.0.0.1 that it knows."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificates")
    usual = ["openssl", "req", "-x509", "-days", "2", "-nodes", "-newkey", "ec"]
    usual += ["-pkeyopt", "ec_paramgen_curve:prime256v1"]
    own = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"]
    own += ["-CA", "ca.crt", "-CAkey", "ca.key"]
    for name, more in (("ca", ["-addext", "keyUsage=critical,keyCertSign"]), ("leaf", own)):
        made = ["-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.crt", *more]
        subprocess.run([*usual, *made], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def posts(certificates):
    server = Posts(certificates)
    yield server
    server.close()


@pytest.fixture
def reporter(posts, certificates, tmp_path, monkeypatch):
    """A reporter that sends ten times a second, and the file with its token."""
    monkeypatch.setattr(kubeflow, "_PERIOD_S", 0.1)
    token = tmp_path / "token"
    token.write_text("first\n")
    name = "KUBEFLOW_TRAINER_SERVER_"
    values = {"URL": posts.url, "CA_CERT": str(certificates / "ca.crt"), "TOKEN": str(token)}
    return StatusReporter({name + key: value for key, value in values.items()}), token


def advance(reporter, epochs):
    reporter.take(Advanced(Progress(launched_t=0.0, now_t=float(epochs), epochs=epochs)))


def test_a_training_is_reported_from_its_start_to_its_end(reporter, posts):
    reporter, _ = reporter
    trial = build_trial()
    with reporter:
        reporter.take(Noted("before"))
        advance(reporter, 7)  # of no trial
        reporter.take(TrialStarts(trial, None))
        wait_for(lambda: posts.epochs() == [None])
        for epochs in (1, 2):
            advance(reporter, epochs)
            wait_for(lambda n=epochs: posts.epochs()[-1] == n)
        reporter.take(TrialEnded(trial.finish(DONE), replaced=False))
    assert posts.epochs() == [None, 1, 2, 2]
    last = posts.found[-1][1]["trainerStatus"]
    assert (last["progressPercentage"], last["estimatedRemainingSeconds"]) == (100, 0)
    assert {bearer for bearer, _ in posts.found} == {"Bearer first"}


def test_many_events_are_few_posts_and_nothing_new_is_none(reporter, posts):
    reporter, _ = reporter
    with reporter:
        reporter.take(TrialStarts(build_trial(), None))
        for epochs in range(1, 1000):
            advance(reporter, epochs)
        wait_for(lambda: 999 in posts.epochs())
        found = posts.epochs()
        time.sleep(0.25)
    assert posts.epochs() == found
    assert len(found) < 100  # on a slow machine, more than one


def test_the_last_state_is_sent_at_the_end(reporter, posts, monkeypatch):
    monkeypatch.setattr(kubeflow, "_PERIOD_S", 1000.0)
    reporter, _ = reporter
    with reporter:
        reporter.take(TrialStarts(build_trial(), None))
        reporter.take(TrialEnded(build_trial().finish(DONE), replaced=False))
    assert posts.epochs() == [2]


def test_a_renewed_token_is_read_again(reporter, posts):
    reporter, token = reporter
    with reporter:
        reporter.take(TrialStarts(build_trial(), None))
        wait_for(posts.epochs)
        token.write_text("second")
        advance(reporter, 1)
    assert [bearer for bearer, _ in posts.found] == ["Bearer first", "Bearer second"]


def test_a_server_that_refuses_a_state_gets_the_next_one(reporter, posts):
    reporter, token = reporter
    with reporter:
        posts.code = 422
        reporter.take(TrialStarts(build_trial(), None))
        wait_for(posts.epochs)
        token.unlink()
        advance(reporter, 1)
        time.sleep(0.25)
        token.write_text("again")
        posts.code = 200
        advance(reporter, 2)
        wait_for(lambda: posts.epochs() == [None, 2])


def test_a_server_that_is_dead_disturbs_nothing(reporter, posts):
    reporter, _ = reporter
    posts.close()
    with reporter:
        reporter.take(TrialStarts(build_trial(), None))
        time.sleep(0.25)
        reporter.take(TrialEnded(build_trial().finish(DONE), replaced=False))
    assert posts.found == []


def test_a_server_that_another_authority_has_signed_learns_nothing(reporter, posts, tmp_path):
    _, token = reporter
    name = "KUBEFLOW_TRAINER_SERVER_"
    other = tmp_path / "other.crt"
    other.write_text("no certificate")
    given = {name + "URL": posts.url, name + "CA_CERT": str(other), name + "TOKEN": str(token)}
    with StatusReporter(given) as distrustful:
        distrustful.take(TrialStarts(build_trial(), None))
    assert posts.found == []


@pytest.mark.parametrize("missing", ["URL", "CA_CERT", "TOKEN"])
def test_where_kubeflow_asks_for_nothing_no_thread_runs(missing):
    name = "KUBEFLOW_TRAINER_SERVER_"
    given = {name + each: "x" for each in {"URL", "CA_CERT", "TOKEN"} - {missing}}
    before = threading.active_count()
    with StatusReporter(given) as reporter:
        reporter.take(TrialStarts(build_trial(), None))
        reporter.take(TrialEnded(build_trial().finish(DONE), replaced=False))
        assert threading.active_count() == before


def test_a_run_that_missed_its_target_is_not_complete():
    trial = build_trial(status=TrialStatus.MISSED, epochs=5)
    status = build_status(trial, None, UNKNOWN)
    check_model(status)
    assert "progressPercentage" not in status
