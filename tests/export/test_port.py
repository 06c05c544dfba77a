"""The port for Prometheus: what it answers, and that nothing holds up the end of a submit."""

from __future__ import annotations

import http.client
import socket
import threading
from dataclasses import replace

import pytest

from tests.factories import DONE, build_trial
from zeusrun.errors import UsageError
from zeusrun.export.port import MetricsPort, parse_address
from zeusrun.launcher.events import TrialEnded, TrialStarts
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.rundir.record import Live, write_live


def ask(port, path="/metrics", method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", int(port.url.split(":")[2].split("/")[0]))
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


@pytest.fixture
def port():
    with MetricsPort("job", "0") as served:
        yield served


def test_a_run_is_served_from_its_start_to_its_end(port, tmp_path):
    trial = build_trial(1, run_dir=str(tmp_path))
    assert 'zeusrun_running{job="job"} 0.0' in ask(port)[1]
    port.take(TrialStarts(trial, None))
    assert "running" in ask(port)[1]  # it has written nothing yet
    write_live(RunPaths(tmp_path), Live(trial, 1, "here", None, power_w=12.5))
    answer, text = ask(port)
    assert 'zeusrun_run_power_watts{job="job"} 12.5' in text
    assert answer.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    port.take(TrialEnded(trial.finish(DONE), replaced=False))
    assert 'zeusrun_running{job="job"} 0.0' in ask(port)[1]


def test_a_counter_never_falls_during_a_run_and_starts_again_with_the_next(port, tmp_path):
    def served(energy_j):
        trial = replace(build_trial(1, run_dir=str(tmp_path)), energy_j=energy_j, steps=3)
        write_live(RunPaths(tmp_path), Live(trial, 1, "here", None, power_w=1.0))
        return ask(port)[1]

    port.take(TrialStarts(build_trial(1, run_dir=str(tmp_path)), None))
    assert 'zeusrun_run_energy_joules_total{job="job"} 0.863' in served(0.863)
    assert 'zeusrun_run_energy_joules_total{job="job"} 0.863' in served(0.652)
    assert "energy_joules_total" not in served(None)  # unknown from now on
    assert 'zeusrun_run_energy_joules_total{job="job"} 0.9' in served(0.9)
    port.take(TrialStarts(build_trial(2, run_dir=str(tmp_path)), None))
    text = served(0.1)
    assert 'zeusrun_run_energy_joules_total{job="job"} 0.1' in text
    assert 'zeusrun_run_steps_total{job="job"} 3.0' in text


def test_other_requests_get_what_they_must(port):
    answer, body = ask(port, "/")
    assert (answer.status, body) == (404, "The metrics are at /metrics\n")
    answer, body = ask(port, "/metrics?x=1", "HEAD")
    assert (answer.status, body) == (200, "")
    assert int(answer.getheader("Content-Length")) > 0
    assert ask(port, method="POST")[0].status == 501


def test_it_listens_on_loopback_alone(port):
    assert port.url.startswith("http://127.0.0.1:")


def test_a_port_in_use_is_refused_in_one_sentence(port):
    number = port.url.split(":")[2].split("/")[0]
    with pytest.raises(UsageError, match=rf"^--metrics-port {number} cannot be opened: .* in use;"):
        MetricsPort("job", number)


def test_a_client_that_sends_nothing_holds_up_neither_the_others_nor_the_end(monkeypatch):
    monkeypatch.setattr("zeusrun.export.port._Handler.timeout", 300.0)
    with socket.socket() as client:
        with MetricsPort("job", "0") as served:
            host, number = served.url.removeprefix("http://").split("/")[0].split(":")
            client.connect((host, int(number)))
            client.send(b"GET /met")
            assert "zeusrun_running" in ask(served)[1]
        assert "zeusrun-metrics" not in {thread.name for thread in threading.enumerate()}


def test_a_bug_of_the_thread_is_raised_at_the_end(monkeypatch):
    def fail(_job, _live):
        raise KeyError("bug")

    monkeypatch.setattr("zeusrun.export.port.live_text", fail)
    served = MetricsPort("job", "0")
    served.__enter__()
    for _ in range(2):  # it goes on
        with pytest.raises(http.client.RemoteDisconnected):
            ask(served)
    with pytest.raises(KeyError):
        served.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9400", ("127.0.0.1", 9400)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
        ("[::1]:9400", ("::1", 9400)),
    ],
)
def test_an_address_is_a_port_or_a_host_and_a_port(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "-1", "65536", "9" * 5000, "here:", "²"])
def test_what_is_no_port_is_refused(text):
    with pytest.raises(UsageError, match="write a number such as 9400, or HOST:9400"):
        parse_address(text)


def test_a_host_that_is_not_this_machine_is_refused():
    with pytest.raises(UsageError, match=r"--metrics-port 192\.0\.2\.1:9400 cannot be opened"):
        MetricsPort("job", "192.0.2.1:9400")
