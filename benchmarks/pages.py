"""What the pages of a server take with a long history; it also makes up the example of the docs.

Targets with 10,000 trials: first paint within 1 s, at most 300 kB.

``python benchmarks/pages.py [--trials 10000] [--jobs 100] [--url URL]`` measures, in Chromium.
``python benchmarks/pages.py --example FILE`` writes an SQLite database with made-up jobs, for the
pictures of the docs. Nothing in it was measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import math
import random
import shutil
import statistics
import tempfile
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import report as example
from timing import describe_machine

from zeusrun.energy.power_trace import read_power
from zeusrun.history.sql import store as sql
from zeusrun.history.sql.migrate import upgrade
from zeusrun.trial import EnergySource, Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
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
    model = example.make_trial((last.recurrence + 1, 1), example.BEST, now, Path("/nowhere"), rng)
    while model.status.value != "REACHED":
        model = example.make_trial(
            (last.recurrence + 1, 1), example.BEST, now, Path("/nowhere"), rng
        )
    model = rename(model, job, last.host or "", timedelta())
    done = model.curve[: int(share * len(model.curve))]
    began = now - timedelta(seconds=(done[-1].time_s if done else 0) + 40)
    fields = {field.name for field in dataclasses.fields(Trial)}
    ended = {*(set(vars(model)) & {field.name for field in dataclasses.fields(example.Outcome)})}
    kept = {name: value for name, value in vars(model).items() if name in fields - ended}
    trial = Trial(**{**kept, "started_at": began.isoformat(timespec="milliseconds")})
    store.begin(trial, after=snapshot.version)
    live = trial.to_json() | {"updated_at": now.isoformat(), "host": last.host, "power_w": None}
    if done:
        end = done[-1]
        live |= {"curve": [list(each) for each in done], "time_s": end.time_s}
        live |= {"energy_j": end.energy_j, "energy_source": "counter", "epochs": end.epoch}
        cost = example.cost_j(end.energy_j, 8 * example.MAX_W, end.time_s, example.ETA)
        live |= {"cost_j": cost, "power_w": 8 * 447.0}
    store.renew(trial.trial, live)


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


@contextlib.contextmanager
def serving(store: sql.SqlHistory) -> Iterator[str]:
    """Serve the pages alone on loopback; yield their address."""
    import uvicorn  # noqa: PLC0415 - optional
    from fastapi import FastAPI  # noqa: PLC0415 - optional

    from zeusrun.server.pages.router import build_router  # noqa: PLC0415 - optional

    app = FastAPI()
    app.include_router(build_router(store))
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, log_level="warning"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join()


def measure(address: str, job: str, repeats: int) -> None:
    """Print the first paint and the size of the pages, the first time and later."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - optional

    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN"
    sizes = "performance.getEntriesByType('navigation')[0].decodedBodySize"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        browser.new_page().goto(
            f"{address}static/page.js"
        )  # the browser has started, the server is cold
        for path in ("", f"job/{job}", "machines"):
            times, size = [], 0
            for _ in range(repeats):
                page = browser.new_page()
                page.goto(address + path, wait_until="load")
                while math.isnan(painted := page.evaluate(paint)):
                    page.wait_for_timeout(5)
                times.append(painted)
                size = page.evaluate(sizes)
                page.close()
            later = statistics.median(times[1:])
            print(
                f"/{path}: first paint {times[0]:.0f} ms, then {later:.0f} ms "
                f"({min(times[1:]):.0f} to {max(times[1:]):.0f}, {repeats - 1} visits); "
                f"{size / 1000:.0f} kB"
            )
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--url", help="of an empty database; by default a new SQLite file")
    parser.add_argument("--example", type=Path, metavar="FILE")
    parser.add_argument("--serve", action="store_true", help="serve the example until Ctrl-C")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = arguments.url or f"sqlite:///{arguments.example or Path(folder) / 'history.db'}"
        store = sql.SqlHistory(url)
        upgrade(store.engine)
        if arguments.example is not None:
            fill_example(store, Path(folder))
            if arguments.serve:
                with serving(store) as address, contextlib.suppress(KeyboardInterrupt):
                    print(address, flush=True)
                    threading.Event().wait()
            return
        fill(store, arguments.trials, arguments.jobs)
        print(f"{describe_machine()}; {arguments.trials} trials of {arguments.jobs} jobs")
        with serving(store) as address:
            measure(address, store.jobs()[0], arguments.repeats)
        store.close()


if __name__ == "__main__":
    main()
