"""Makes up histories for the pages of a server: the example of the docs, and long ones.

``python benchmarks/pages.py FILE`` writes the example to an SQLite database, for the pictures of
the docs. Nothing in it was measured. ``benchmarks/server.py --page`` measures the pages.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path
from uuid import uuid4

import report as example

from zeusrun.energy.power_trace import read_power
from zeusrun.history.sql import store as sql
from zeusrun.history.sql.schema import create_tables
from zeusrun.trial import EnergySource, Trial

JOBS = ("forecast", "ranking", "speech-nightly", "segmentation", "embeddings")
SETTINGS = """name: {name}
script: /srv/jobs/{name}/train.py
launch: {{nproc_per_node: 8}}
objective: {{metric: val_accuracy, target: 0.92, max_epochs: 30, eta_knob: 0.5}}
batch_size: {{default: 128, candidates: [64, 128, 256, 512, 1024]}}
"""


def rename(trial: Trial, job: str, host: str, shift: timedelta) -> Trial:
    """Give a made-up trial of the report's example to another job, later by ``shift``."""

    def later(at: str | None) -> str | None:
        return at and (datetime.fromisoformat(at) + shift).isoformat(timespec="milliseconds")

    name = f"{job}-{trial.recurrence}-{trial.attempt}"
    values = {"trial": name, "job": job, "host": host, "run_dir": f"/srv/zeusrun/runs/{job}/{name}"}
    values["uuid"] = uuid4().hex
    values |= {"started_at": later(trial.started_at), "finished_at": later(trial.finished_at)}
    return dataclasses.replace(trial, **values)


def fill(store: sql.SqlHistory, trials: int, jobs: int) -> None:
    """Write ``trials`` trials of ``jobs`` jobs, and a machine."""
    rng = random.Random(19)  # noqa: S311 - not for secrets
    names = [f"job-{number:03d}" for number in range(jobs)] if jobs > len(JOBS) else JOBS[:jobs]
    for number, name in enumerate(names):
        count = trials // jobs + (number < trials % jobs)
        made = example.make_trials(count, Path("/nowhere"), rng)
        store.add([rename(each, name, f"node-{number % 4}", timedelta()) for each in made])
        store.keep_settings(name, SETTINGS.format(name=name))


def fill_example(store: sql.SqlHistory, folder: Path) -> None:
    """Write five jobs with power traces, three runs that run now, machines and schedules."""
    rng = random.Random(19)  # noqa: S311 - not for secrets
    now = datetime.now(timezone.utc)
    for number, (name, count) in enumerate(zip(JOBS, (48, 30, 61, 14, 5), strict=True)):
        made = example.make_trials(count, folder, rng)
        newest = datetime.fromisoformat(made[-1].started_at)
        shift = now - newest - timedelta(hours=5 + 7 * number)
        host = f"gpu-node-{number % 2 + 1}"
        own = [rename(each, name, host, shift) for each in made]
        if name == "embeddings":  # a small job on a CPU
            values = {"gpu_model": None, "gpu_count": 0, "power_limit_w": None}
            values["energy_source"] = EnergySource.ESTIMATED
            own = [dataclasses.replace(each, **values) for each in own]
        store.add(own)
        if name != "embeddings":
            store.keep_settings(name, SETTINGS.format(name=name))
        for before, trial in list(zip(made, own, strict=True))[-8:]:
            path = folder / f"{before.trial}.csv"
            example.write_power(path, before, 1.0)
            trace = read_power(path, 120)
            if trace is not None and trial.gpu_count:
                store.keep_trace(trial.trial, trace.to_json())
    for name, share in zip(JOBS, (0.7, 0.35, 0.0), strict=False):
        begin_running(store, name, share, now, rng)
    for number, busy in enumerate((True, True, False), 1):
        store.report_host(f"gpu-node-{number}", host_facts(number, busy=busy, now=now, rng=rng))


def begin_running(
    store: sql.SqlHistory, job: str, share: float, now: datetime, rng: random.Random
) -> None:
    """Write a trial that runs now and has done a share of its training."""
    snapshot = store.snapshot(job)
    last = snapshot.trials[-1]
    number, nowhere = (last.recurrence + 1, 1), Path("/nowhere")
    model = example.make_trial(number, example.BEST, now, nowhere, rng, job)
    while model.status.value != "REACHED":
        model = example.make_trial(number, example.BEST, now, nowhere, rng, job)
    model = rename(model, job, last.host or "", timedelta())
    done = model.curve[: int(share * len(model.curve))]
    began = now - timedelta(seconds=(done[-1].time_s if done else 0) + 40)
    fields = {field.name for field in dataclasses.fields(Trial)}
    ended = {*(set(vars(model)) & {field.name for field in dataclasses.fields(example.Outcome)})}
    kept = {name: value for name, value in vars(model).items() if name in fields - ended}
    trial = Trial(**{**kept, "started_at": began.isoformat(timespec="milliseconds")})
    store.begin(trial, after=snapshot.version)
    live = trial.to_json() | {"updated_at": now.isoformat(), "pid": None, "power_w": None}
    if done:
        end = done[-1]
        live |= {"curve": [list(each) for each in done], "time_s": end.time_s}
        live["best_metric"] = max(point.value for point in done if point.value is not None)
        live |= {"energy_j": end.energy_j, "energy_source": "counter", "epochs": end.epoch}
        cost = example.cost_j(end.energy_j, 8 * example.MAX_W, end.time_s, example.ETA)
        live |= {"cost_j": cost, "power_w": 8 * 447.0}
    store.renew(trial.trial, live, 86400.0)  # it is not LOST while somebody looks at it


def host_facts(number: int, *, busy: bool, now: datetime, rng: random.Random) -> dict[str, object]:
    """Return what a machine would report."""
    gpus = [
        {
            "cuda_index": index,
            "model": "NVIDIA H100 80GB HBM3",
            "power_w": rng.gauss(446, 9) if busy else rng.gauss(71, 2),
            "power_limit_w": 500.0 if busy else 700.0,
            "utilization": rng.uniform(0.94, 0.99) if busy else 0.0,
            "temperature_c": rng.gauss(66, 2) if busy else rng.gauss(34, 1),
            "throttle_reasons": ["sw_thermal_slowdown"] if busy and index == 3 else [],
            "energy_source": "counter",
        }
        for index in range(8)
    ]
    job = JOBS[number - 1]
    tomorrow = (now + timedelta(days=1)).replace(hour=1, minute=0, second=0, microsecond=0)
    schedule = {
        "job": job,
        "words": "every day at 01:00",
        "tz": "Europe/Berlin",
        "next": [tomorrow.isoformat()],
        "firings": [{"occurrence": now.isoformat(), "result": "ended", "exit_code": 0}],
        "paused": number == 3,
    }
    return {"version": "0.1.0", "gpus": gpus, "schedules": [schedule]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the new SQLite database")
    path = parser.parse_args().file
    store = sql.SqlHistory(f"sqlite:///{path.absolute()}")
    create_tables(store.engine)
    with tempfile.TemporaryDirectory() as folder:
        fill_example(store, Path(folder))
    store.close()
    print(f"zeusrun serve --database-url sqlite:///{path.absolute()}")


if __name__ == "__main__":
    main()
