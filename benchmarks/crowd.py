"""How long submits of one job take to begin if they all start at once, and how often they conflict.

The submits are real, with the stand-in for torchrun of the tests, which imports no torch. With a
server, each submit has its own home, as on a different machine. With ``--threads``, each submit is
a thread of this process that only begins a trial: no process starts, and nothing trains.

Targets: no conflicts, and the last of 50 submits has begun within 1.5 times what 50 take to begin
one after the other.

``python benchmarks/crowd.py [--threads] [--submits 5 10 20 40 50] [--history tinydb server]``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from faults_home import ROOT, Home
from server_scene import Postgres, Server
from timing import describe_machine

from zeusrun.bandit.registry import create_policy
from zeusrun.history import base
from zeusrun.history.registry import open_named
from zeusrun.history.sql.schema import create_tables
from zeusrun.history.sql.store import SqlHistory
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.begin import begin
from zeusrun.launcher.context import Submission
from zeusrun.launcher.processes.command import find_torchrun

SUBMIT = Path(__file__).with_name("scripts") / "counted_submit.py"
ALONE = 5  # submits that run one after the other


class Crowd:
    """Submits of one job, each in a process of its own."""

    def __init__(self, folder: Path, environment: dict[str, str], *, one_home: bool) -> None:
        self._folder, self._one_home = folder, one_home
        self._told = folder / "told"
        self._environment = {
            "CROWD_FILE": str(self._told),
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT / "tests" / "fake_torchrun"), os.environ.get("PYTHONPATH", "")]
            ).rstrip(os.pathsep),
            **environment,
        }
        self._count = 0

    def run(self, submits: int) -> tuple[list[float], list[float], int, list[dict[str, object]]]:
        """Start so many at once; return when each began, how long it chose, conflicts, results.

        Seconds from the start of the first process, and from its first snapshot.
        """
        self._told.unlink(missing_ok=True)
        started_t = time.monotonic()
        started = [self._start() for _ in range(submits)]
        results = []
        for process, output in started:
            if process.wait():
                raise SystemExit(f"a submit failed; see {output}")
            results += json.loads(output.read_text().splitlines()[-1])["trials"]
        lines = [line.split() for line in self._told.read_text().splitlines()]
        begun = [line for line in lines if line[0] == "begun"]
        conflicts = sum(line[0] == "conflict" for line in lines)
        begun_s = sorted(float(line[1]) - started_t for line in begun)
        return begun_s, [float(line[2]) for line in begun], conflicts, results

    def _start(self) -> tuple[subprocess.Popen[bytes], Path]:
        self._count += 1
        folder = self._folder / (str(0) if self._one_home else str(self._count))
        folder.mkdir(exist_ok=True)
        home = Home(folder)
        job = home.write_job(1, 0.05)
        output = self._folder / f"{self._count}.out"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("ZEUSRUN_")}
        with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, str(SUBMIT), "submit", str(job), "--json"],
                cwd=folder,
                env={**kept, "ZEUSRUN_HOME": str(home.path), **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        return process, output


def open_history(kind: str, folder: Path, stack: ExitStack) -> dict[str, str]:
    """Start what a history needs; return the environment variables that name it."""
    if kind == "tinydb":
        return {}
    postgres = Postgres()
    stack.callback(postgres.close)
    history = SqlHistory(postgres.url)
    create_tables(history.engine)
    history.close()
    (folder / "server").mkdir()
    server = Server(postgres.url, folder / "server")
    stack.callback(server.close)
    return {"ZEUSRUN_HISTORY": server.url, "ZEUSRUN_TOKEN": server.token}


def measure_threads(kind: str, submits: int) -> None:
    """Measure how long threads take to begin a trial, first one after the other, then at once."""
    conflicts = []
    base.Conflict.__init__ = lambda self, *args: (  # type: ignore[method-assign]
        conflicts.append(1),
        Exception.__init__(self, *args),
    )[-1]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crowd-")))
        environment = open_history(kind, folder, stack)
        spec = load_spec(Home(folder).write_job(1, 0.05))
        begun_t: list[float] = []

        def submit(number: int) -> None:
            home = folder if kind == "tinydb" else folder / str(number)
            submission = Submission(
                spec=spec,
                history=open_named(home, environment, environment.get("ZEUSRUN_HISTORY", "tinydb")),
                policy=create_policy("auto"),
                devices=(),
                world_size=1,
                torchrun=torchrun,
                home=home,
                environment={},
            )
            begun = begin(submission, [], lambda _event: None)
            begun_t.append(time.monotonic())
            begun.lease.release()

        torchrun = find_torchrun()
        started_t = time.monotonic()
        for number in range(submits):
            submit(number)
        alone_s = time.monotonic() - started_t
        begun_t.clear()
        started_t = time.monotonic()
        threads = [threading.Thread(target=submit, args=(n,)) for n in range(submits)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        last_s = max(begun_t) - started_t
        print(
            f"{kind:10} {submits:3} threads: {len(conflicts):4} conflicts, last begin after "
            f"{last_s:6.2f} s; one after the other {alone_s:.2f} s: {last_s / alone_s:.2f} times",
            flush=True,
        )


def measure(kind: str, submits: int) -> None:
    """Measure submits of a new job, first alone, then at once."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crowd-")))
        environment = open_history(kind, folder, stack)
        crowd = Crowd(folder, environment, one_home=kind == "tinydb")
        alone = [crowd.run(1) for _ in range(ALONE)]
        alone_s = statistics.median(begun_s[0] for begun_s, *_ in alone)
        chosen_s = statistics.median(choosing_s[0] for _, choosing_s, *_ in alone)
        begun_s, _, conflicts, trials = crowd.run(submits)
        sizes = Counter(trial["global_batch_size"] for trial in trials)
        print(
            f"{kind:10} {submits:3} at once: {conflicts:4} conflicts, last begin after "
            f"{begun_s[-1]:5.1f} s, median {statistics.median(begun_s):5.1f} s; one alone "
            f"{alone_s:.2f} s, of which {chosen_s:.3f} s to choose and begin: "
            f"{begun_s[-1] / submits / alone_s:.2f} times {submits} alone; batch sizes "
            f"{dict(sorted(sizes.items()))}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--submits", type=int, nargs="+", default=[5, 10, 20, 40, 50])
    parser.add_argument("--history", nargs="+", default=["tinydb", "server"], dest="kinds")
    parser.add_argument("--threads", action="store_true")
    options = parser.parse_args()
    print(describe_machine())
    for kind in options.kinds:
        for submits in options.submits:
            (measure_threads if options.threads else measure)(kind, submits)


if __name__ == "__main__":
    main()
