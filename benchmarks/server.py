"""What the server of a shared history does under load, and what it loses when it is killed.

Targets on two cores, with the load on the same machine:

- ``--load``: 1,000 launchers of 100 jobs begin 50 trials a second: the 99th percentile of begin is
  at most 100 ms on PostgreSQL; no trial is lost, none is there twice.
- ``--long``: a job of 100,000 trials, with the client that launchers have: begin takes at most
  50 ms beyond reading the new trials.
- ``--kills``: SIGKILL of the server and of the database under load, 50 times each: no write that
  was acknowledged is lost.
- ``--page``: the page with 10,000 trials: first paint within 1 s, at most 300 kB.

``python benchmarks/server.py --load|--long|--kills|--page [--database sqlite|postgresql]``
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import shutil
import statistics
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pages
from server_scene import Client, Postgres, Server, draw_outcome, draw_trial
from timing import describe_machine

from zeusrun.history.base import NEWEST
from zeusrun.history.http.client import HttpHistory
from zeusrun.history.shared.store import SharedHistory
from zeusrun.history.sql.schema import create_tables
from zeusrun.history.sql.store import SqlHistory
from zeusrun.trial import Outcome, Trial, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")

LAUNCHERS, JOBS, RATE = 1000, 100, 50.0
HEARTBEAT_S = 20.0
KILLS = 50
LONG = 100_000
PAGE_TRIALS = 10_000
PAGES = (
    "/",
    "/job/forecast",
    "/job/forecast?sort=-cost&host=node-0",
    "/runs?sort=-energy",
    "/run/forecast-5000-1",
    "/machines",
)
RANDOM = random.Random(19)  # noqa: S311 - not for secrets


@dataclass
class Tally:
    """What the launchers saw."""

    begun: dict[str, str] = field(default_factory=dict)  # uuid -> id, as acknowledged
    finished: set[str] = field(default_factory=set)  # uuids
    turn_s: list[float] = field(default_factory=list)
    begin_s: list[float] = field(default_factory=list)
    read_s: list[float] = field(default_factory=list)
    finish_s: list[float] = field(default_factory=list)
    heartbeat_s: list[float] = field(default_factory=list)
    conflicts: int = 0
    errors: Counter[str] = field(default_factory=Counter)


class Launcher:
    """Chooses from a snapshot, begins, sends heartbeats, finishes; again and again."""

    def __init__(self, server: Server, job: str, tally: Tally) -> None:
        self.client, self.job, self.tally = Client(server.port, server.token), job, tally
        self.version: str | None = None
        self.recurrence = 0

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, dict, float]:  # type: ignore[type-arg]
        """Ask until the server answers; return the answer and how long the last try took."""
        count = 0
        while True:
            started = time.perf_counter()
            try:
                status, answer = await self.client.ask(method, path, body)
            except OSError:
                self.tally.errors["no answer"] += 1
            else:
                if status < 500 and status != 429:
                    return status, answer, time.perf_counter() - started
                self.tally.errors[str(status)] += 1
            count += 1
            await asyncio.sleep(0.1 + min(5.0, 0.1 * 2**count) * RANDOM.random())

    async def take_turn(self, number: int) -> int:
        """Wait until it is the turn of this launcher, as ``HeldTurn`` does; return its number."""
        while True:
            path = f"/api/v1/jobs/{self.job}/turns"
            _, turn, seconds = await self.ask("POST", path, {"number": number})
            self.tally.turn_s.append(seconds)
            if not turn["ahead"]:
                return int(turn["number"])
            took_s = seconds if number else 0.0
            number = turn["number"]
            await asyncio.sleep(min(2.5, max(0.02, 2.0 * took_s) * turn["ahead"]))

    async def run(self, trains_s: float) -> None:
        """Run one trial."""
        record, turn = None, 0
        while True:
            turn = await self.take_turn(turn)
            path = f"/api/v1/jobs/{self.job}/trials?last=1000"
            path += f"&after={self.version}" if self.version else ""
            _, news, seconds = await self.ask("GET", path)
            self.tally.read_s.append(seconds)
            self.version = news["version"]
            trials = news["trials"]
            self.recurrence = max([self.recurrence, *(each["recurrence"] for each in trials)])
            record = draw_trial(self.job, self.recurrence + 1)
            body = {"trial": record, "after": self.version, "turn": turn}
            status, answer, seconds = await self.ask(
                "POST", f"/api/v1/jobs/{self.job}/trials", body
            )
            if status in {200, 201}:
                break
            if status != 409:
                raise SystemExit(f"begin: {status} {answer}")
            self.tally.conflicts += 1
        self.tally.begin_s.append(seconds)
        self.tally.begun[record["uuid"]] = record["trial"]
        until_t = time.monotonic() + trains_s
        pause_s = HEARTBEAT_S * RANDOM.random()  # of a run that is shorter than a real one
        live = {"live": {**record, "power_w": 250.0}}
        while (left_s := until_t - time.monotonic()) > pause_s:
            await asyncio.sleep(pause_s)
            path = f"/api/v1/trials/{record['uuid']}/lease"
            _, _, seconds = await self.ask("PUT", path, live)
            self.tally.heartbeat_s.append(seconds)
            pause_s = HEARTBEAT_S
        await asyncio.sleep(max(0.0, left_s))
        path = f"/api/v1/trials/{record['uuid']}/outcome"
        status, answer, seconds = await self.ask("POST", path, draw_outcome())
        if status not in {200, 201}:
            raise SystemExit(f"finish: {status} {answer}")
        self.tally.finish_s.append(seconds)
        self.tally.finished.add(record["uuid"])


async def drive(
    server: Server, tally: Tally, *, launchers: int, rate: float, seconds: float
) -> None:
    """Begin ``rate`` trials a second with so many launchers, each at most one at a time."""
    idle = [Launcher(server, f"job-{n % JOBS:03}", tally) for n in range(launchers)]
    RANDOM.shuffle(idle)
    trains_s = 0.9 * launchers / rate
    running: set[asyncio.Task[None]] = set()
    started_t, count = time.monotonic(), 0
    while (now_t := time.monotonic()) < started_t + seconds:
        if now_t < started_t + count / rate or not idle:
            await asyncio.sleep(0.002)
            continue
        count += 1
        launcher = idle.pop(0)
        task = asyncio.create_task(
            launcher.run(min(trains_s, seconds) * (0.9 + RANDOM.random() / 10))
        )
        running.add(task)
        task.add_done_callback(lambda done, it=launcher: (running.discard(done), idle.append(it)))
    await asyncio.gather(*running)


def audit(database_url: str, tally: Tally) -> str:
    """Compare what was acknowledged with what the database contains."""
    history = SqlHistory(database_url)
    stored = [trial for job in history.jobs() for trial in history.trials(job)]
    by_uuid = Counter(trial.uuid for trial in stored)
    by_id = Counter(trial.trial for trial in stored)
    ended = {t.uuid for t in stored if t.status is TrialStatus.REACHED}
    lost = sum(uuid not in by_uuid for uuid in tally.begun)
    twice = sum(count > 1 for count in (*by_uuid.values(), *by_id.values()))
    renamed = sum(t.uuid in tally.begun and tally.begun[t.uuid] != t.trial for t in stored)
    unfinished = len(tally.finished - ended)
    history.close()
    return (
        f"{len(tally.begun)} begins and {len(tally.finished)} outcomes acknowledged; lost "
        f"{lost} + {unfinished}, duplicated {twice}, renumbered {renamed}"
    )


def show(name: str, values: list[float]) -> None:
    if not values:
        return
    ordered = sorted(values)
    at = lambda share: 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]  # noqa: E731
    print(
        f"{name:9} median {at(0.5):7.1f} ms   p95 {at(0.95):7.1f} ms   p99 {at(0.99):7.1f} ms   "
        f"max {1000 * ordered[-1]:7.1f} ms   ({len(values)})"
    )


def measure_load(database_url: str, home: Path, options: argparse.Namespace) -> None:
    server = Server(database_url, home)
    tally = Tally()
    try:
        load = drive(server, tally, launchers=LAUNCHERS, rate=RATE, seconds=options.seconds)
        asyncio.run(load)
    finally:
        server.close()
    show("turn", tally.turn_s)
    show("begin", tally.begin_s)
    show("read", tally.read_s)
    show("finish", tally.finish_s)
    show("heartbeat", tally.heartbeat_s)
    print(f"{tally.conflicts} conflicts; errors: {dict(tally.errors) or 'none'}")
    print(audit(database_url, tally))


def fill(database_url: str, jobs: dict[str, int], epochs: int) -> None:
    """Store finished trials."""
    history = SqlHistory(database_url)
    for job, count in jobs.items():
        for first in range(1, count + 1, 1000):
            numbers = range(first, min(first + 1000, count + 1))
            records = [{**draw_trial(job, n), **draw_outcome(epochs)} for n in numbers]
            history.add([Trial.from_json(record) for record in records])
    history.close()


def measure_long(database_url: str, home: Path, options: argparse.Namespace) -> None:
    server = Server(database_url, home)
    try:
        started = time.perf_counter()
        fill(database_url, {"job-000": LONG}, 20)
        print(f"{LONG} trials stored in {time.perf_counter() - started:.0f} s")
        remote = HttpHistory(server.url, server.token)
        client = SharedHistory(remote, home / "client", server.url)
        names = "first read", "read", "begin", "finish"
        spent: dict[str, list[float]] = {name: [] for name in names}

        def timed(name: str, call: Callable[[], _Result]) -> _Result:
            started_t = time.perf_counter()
            result = call()
            spent[name].append(time.perf_counter() - started_t)
            return result

        outcome = Outcome.from_json(dict(draw_outcome()))
        for number in range(options.repeats + 1):
            known = timed(names[number > 0], lambda: client.snapshot("job-000", NEWEST))
            trial = Trial.from_json(draw_trial("job-000", known.trials[-1].recurrence + 1))
            timed("begin", lambda new=trial, at=known: client.begin(new, after=at.version))
            timed("finish", lambda new=trial: client.finish(new.trial, outcome))
        for name in names:
            show(name, spent[name])
    finally:
        server.close()


def measure_kills(database_url: str, home: Path, options: argparse.Namespace) -> None:
    postgres: Postgres | None = options.postgres
    server = Server(database_url, home)
    tally = Tally()

    async def kill_all() -> None:
        loop = asyncio.get_running_loop()
        work = asyncio.create_task(drive(server, tally, launchers=60, rate=20.0, seconds=10_000))
        kills = [("server", server.restart)] * options.kills
        if postgres is not None:
            kills += [("database", lambda: (postgres.kill(), postgres.start()))] * options.kills
        RANDOM.shuffle(kills)
        for _, kill in kills:
            await asyncio.sleep(0.3 + RANDOM.random())
            await loop.run_in_executor(None, kill)
        await asyncio.sleep(1)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    try:
        asyncio.run(kill_all())
    finally:
        server.close()
    killed = f"{options.kills} kills of the server"
    print(killed + (f" and {options.kills} of the database" if postgres else ""))
    print(f"errors that launchers saw: {dict(tally.errors) or 'none'}")
    print(audit(database_url, tally))


def measure_page(database_url: str, home: Path, options: argparse.Namespace) -> None:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - for this alone

    history = SqlHistory(database_url)
    create_tables(history.engine)
    pages.fill(history, PAGE_TRIALS, JOBS)
    pages.fill(history, PAGE_TRIALS, 1)
    history.close()
    server = Server(database_url, home)  # a new one: nothing is known to it yet
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN"
    of = "performance.getEntriesByType"
    size = (
        f"[...{of}('navigation'), ...{of}('resource')].reduce((n, e) => n + e.decodedBodySize, 0)"
    )
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=flags
            )
            headers = {"Authorization": f"Bearer {server.token}"}
            for path in PAGES:
                paints, sizes = [], []
                for _ in range(options.repeats):
                    page = browser.new_context(extra_http_headers=headers).new_page()
                    page.goto(server.url + path, wait_until="load")
                    while math.isnan(painted := page.evaluate(paint)):
                        page.wait_for_timeout(5)
                    paints.append(painted)
                    sizes.append(page.evaluate(size))
                    page.context.close()
                first, *later = paints
                print(
                    f"{path:39}  first visit {first:5.0f} ms, later median "
                    f"{statistics.median(later):4.0f} ms ({min(later):.0f} to {max(later):.0f}); "
                    f"{max(sizes) / 1000:4.0f} kB"
                )
            browser.close()
    finally:
        server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    measures = {
        "load": measure_load,
        "long": measure_long,
        "kills": measure_kills,
        "page": measure_page,
    }
    for name in measures:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="postgresql")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--kills-each", dest="kill_count", type=int, default=KILLS)
    options = parser.parse_args()
    print(f"{describe_machine()}; {options.database}")
    options.kills, wanted_kills = options.kill_count, options.kills
    chosen = [n for n in measures if (wanted_kills if n == "kills" else getattr(options, n))]
    for name in chosen:
        print(f"--{name}")
        with ExitStack() as stack:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zeusrun-")))
            options.postgres = None
            url = f"sqlite:///{home}/history.db"
            if options.database == "postgresql":
                options.postgres = Postgres()
                stack.callback(options.postgres.close)
                url = options.postgres.url
            measures[name](url, home, options)


if __name__ == "__main__":
    main()
