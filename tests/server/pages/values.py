"""What the pages of the tests show."""

from __future__ import annotations

import dataclasses

from tests.factories import begin, build_trial, uuid_of
from tests.view.report.values import KWH, run
from zeusrun.energy.power_trace import PowerSpan, PowerTrace
from zeusrun.trial import TrialStatus

EVIL = "</script><script>alert('$x$ & \x1b[31m \u202e')</script>"
SETTINGS = """name: job
script: /nowhere/train.py
objective: {metric: accuracy, target: 0.5, max_epochs: 5, eta_knob: 1}
batch_size: {default: 32, candidates: [32, 64, 128]}
"""
LIVE = {
    **build_trial(4).to_json(),
    "pid": 1,
    "host": "node-a",
    "updated_at": "2026-03-05T12:00:00+00:00",
    "power_w": 321.0,
    "time_s": 100.0,
    "energy_j": 0.5 * KWH,
    "cost_j": 0.5 * KWH,
    "whole_epochs": 2,
    "epochs": 2,
    "curve": [[1, 50.0, 9e5, 0.2], [2, 100.0, 1.8e6, 0.4]],
}
"""What the launcher of ``job-4-1`` sends."""


def trace(points=30):
    spans = tuple(
        PowerSpan(10.0 * n, 500.0, 600.0, 700.0, 800.0, n % 7 == 0) for n in range(points)
    )
    return PowerTrace(spans, 2, whole=False, throttled={"hw_slowdown": 0.1})


def named(job, trial, **changes):
    """Give a trial to another job."""
    name = f"{job}-{trial.recurrence}-{trial.attempt}"
    return dataclasses.replace(trial, trial=name, job=job, uuid=uuid_of(name), **changes)


def fill(store):
    """Write job ``job`` with a run that runs now, job ``other``, and two machines."""
    priced = {"price": 0.3, "currency": "EUR", "carbon_g": 400.0, "host": "node-a"}
    priced["run_dir"] = "/home/a/runs"
    own = [
        run(1, 32, **priced),
        run(2, 64, 0.5, **priced),
        run(3, 128, 0.2, status=TrialStatus.MISSED, reason="too few epochs"),
        run(3, 64, 0.5, attempt=2),
    ]
    store.add([*own, *(named("other", run(n, 32)) for n in (1, 2))])
    store.keep_settings("job", SETTINGS)
    store.keep_trace("job-2-1", trace().to_json())
    begin(store, build_trial(4, global_batch_size=64, eta_knob=1.0, run_dir="/home/a/runs"))
    store.renew("job-4-1", LIVE)
    store.report_host("node-a", host("job", held_by="job-4-1"))
    store.report_host("node-b", host("other"))


def host(job, **gpu):
    """Return what a machine reports."""
    about = {"nvml_index": 0, "model": "NVIDIA H100", "power_w": 450.0, "power_limit_w": 500.0}
    about |= {"utilization": 0.97, "temperature_c": 66.0, "energy_source": "counter"}
    schedule = {"job": job, "words": "every day at 01:00", "next": ["2026-03-06T01:00:00+01:00"]}
    schedule["last_run"] = "the target was missed (exit code 4)"
    return {"version": "0.1.0", "gpus": [{**about, **gpu}], "schedules": [schedule]}
