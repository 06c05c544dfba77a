"""The text format, by a parser that is not ours where it is installed."""

from __future__ import annotations

import http.client
import re
import socket
import threading
from dataclasses import replace

import pytest

from tests.factories import DONE, PREEMPTED, REACHED, build_trial
from zeusrun.errors import UsageError
from zeusrun.export.prometheus import Families, MetricsPort, history_text, live_text, parse_address
from zeusrun.launcher.events import TrialEnded, TrialStarts
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.rundir.record import Live, write_live
from zeusrun.trial import CurvePoint, SizeChange, TrialStatus

SAMPLE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\\n]|\\[\\n"])*",?)*)\} (\S+)')


def read(text):
    """Return each sample by its name and the values of its labels."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = SAMPLE.fullmatch(line).groups()
            values = re.findall(r'"((?:[^"\\]|\\.)*)"', labels)
            found[(name, *values)] = float(value)
    return found


def live(**changes):
    taken = {"time_s": 4.0, "steps": 100, "energy_j": 40.0, "cost_j": 100.0, "epochs": 2}
    taken |= {"whole_steps": 150, "whole_epochs": 2}
    curve = (CurvePoint(1, 2.0, 20.0, 0.3), CurvePoint(2, 4.0, 40.0, 0.4))
    trial = build_trial(7, **{**taken, "curve": curve, "best_metric": 0.4, **changes})
    return Live(trial, 1, "node7", "2025-06-01T12:00:05Z", power_w=10.5)


def test_the_history_of_a_job_is_its_totals_and_its_last_run():
    paid = replace(DONE, price=0.5, currency="EUR", carbon_g=20.0)
    trials = [
        build_trial(1).finish(DONE),
        build_trial(2).finish(paid),
        build_trial(3, global_batch_size=64).finish(replace(paid, cost_j=90.0)),
        build_trial(4),
    ]
    found = read(history_text({"job": trials}))
    assert found["zeusrun_runs_total", "job", "REACHED"] == 3
    assert found["zeusrun_energy_joules_total", "job", "estimated"] == 120
    assert found["zeusrun_price", "job", "EUR"] == 1.0
    assert found["zeusrun_carbon_grams_total", "job"] == 40
    saved = [found[f"zeusrun_saved{end}_joules", "job"] for end in ("_low", "", "_high")]
    assert saved[0] < saved[1] < saved[2]
    assert found["zeusrun_last_run_info", "job", "job-3-1", "REACHED"] == 1
    assert found["zeusrun_last_run_batch_size", "job"] == 64
    assert found["zeusrun_last_run_best_metric", "job", "accuracy"] == 0.6
    assert found["zeusrun_last_run_end_time_seconds", "job"] == 1748782800


def test_a_preempted_run_has_not_ended():
    late = replace(DONE, finished_at="2025-06-01T15:00:00.000+00:00")
    trials = [build_trial(1).finish(late), build_trial(2).finish(DONE)]  # the first one ended last
    text = history_text({"job": [*trials, build_trial(3).finish(PREEMPTED)]})
    found = read(text)
    assert found["zeusrun_last_run_info", "job", "job-1-1", "REACHED"] == 1
    assert found["zeusrun_energy_joules_total", "job", "estimated"] == 80
    assert "PREEMPTED" not in text


def test_what_may_fall_is_no_counter():
    paid = replace(DONE, price=-0.5, currency="EUR", carbon_g=20.0)
    for text in (
        history_text({"job": [build_trial(1).finish(paid)]}),
        live_text("job", live(price=-0.5, currency="EUR", carbon_g=20.0)),
    ):
        assert not re.search(r"price\w* counter", text)
    assert "# TYPE zeusrun_run_carbon_grams gauge" in text


def test_what_is_unknown_has_no_sample():
    lost = replace(DONE, status=TrialStatus.LOST, time_s=None, energy_j=None, cost_j=None)
    text = history_text({"job": [build_trial(1).finish(lost)]})
    assert "zeusrun_last_run_reached" in text
    for name in ("energy", "cost", "time_seconds", "price", "carbon", "power_limit"):
        assert not re.search(rf"^zeusrun_(last_run_)?{name}", text, re.MULTILINE), name


def test_a_running_trial_shows_its_present_values():
    found = read(live_text("job", live(price=0.1, currency="EUR", carbon_g=3.0)))
    assert found["zeusrun_running", "job"] == 1
    assert found["zeusrun_run_info", "job", "job-7-1", "node7"] == 1
    expected = {
        "power_watts": 10.5,
        "energy_joules_total": 40,
        "cost_joules_total": 100,
        "steps_total": 100,
        "whole_steps_total": 150,
        "epoch": 2,
        "batch_size": 32,
        "carbon_grams": 3,
    }
    assert {name: found[f"zeusrun_run_{name}", "job"] for name in expected} == expected
    assert found["zeusrun_run_price", "job", "EUR"] == 0.1
    assert found["zeusrun_run_metric", "job", "accuracy"] == 0.4


def test_a_batch_size_that_adapts_is_the_present_one():
    found = read(live_text("job", live(batch_sizes=(SizeChange(1, 32), SizeChange(2, 64)))))
    assert found["zeusrun_run_batch_size", "job"] == 64


def test_without_a_run_there_is_one_sample():
    assert read(live_text("job", None)) == {("zeusrun_running", "job"): 0}


def test_label_values_are_escaped():
    families = Families()
    families.add("info", "Text.", 1, name='a "b"\\\nc\udcff', none=None)
    assert families.text().splitlines()[2] == 'zeusrun_info{name="a \\"b\\"\\\\\\nc?"} 1.0'


def test_the_parser_of_prometheus_reads_it():
    parser = pytest.importorskip("prometheus_client.parser")
    name = 'top 1 "exact"\\\n'
    jobs = {
        job: [build_trial(1, job=job, metric=name).finish(REACHED), build_trial(2, job=job)]
        for job in ("job", "other")
    }
    for text in (history_text(jobs), live_text("job", live(metric=name))):
        families = list(parser.text_string_to_metric_families(text))
        samples = [sample for family in families for sample in family.samples]
        assert len(samples) == len(read(text))
        assert {"counter", "gauge"} == {family.type for family in families}
        assert any(sample.labels.get("metric") == name for sample in samples)
        assert len({family.name for family in families}) == len(families)


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
    monkeypatch.setattr("zeusrun.export.prometheus._Handler.timeout", 300.0)
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

    monkeypatch.setattr("zeusrun.export.prometheus.live_text", fail)
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
