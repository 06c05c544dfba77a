"""How long submits of one job take to begin if they all start at once, and how they conflict.

The submits are real, with the stand-in for torchrun of the tests, which imports no torch. With a
server or a database, each has a home of its own, as on another machine.

Targets: no conflicts, and the last of 50 submits has begun within 1.5 times what 50 take to begin
one after the other.

``python benchmarks/crowd.py [--submits 5 10 20 40 50] [--history tinydb postgresql server]``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from faults_home import ROOT, Home
from server_scene import Postgres, Server
from timing import describe_machine

from zeusrun.history.sql.schema import create_tables
from zeusrun.history.sql.store import SqlHistory

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


def measure(kind: str, submits: int) -> None:
    """Measure submits of a new job, first alone, then at once."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crowd-")))
        environment: dict[str, str] = {}
        if kind != "tinydb":
            postgres = Postgres()
            stack.callback(postgres.close)
            environment["ZEUSRUN_HISTORY"] = postgres.url
            history = SqlHistory(postgres.url)
            create_tables(history.engine)
            history.close()
        if kind == "server":
            (folder / "server").mkdir()
            server = Server(postgres.url, folder / "server")
            stack.callback(server.close)
            environment |= {"ZEUSRUN_HISTORY": server.url, "ZEUSRUN_TOKEN": server.token}
        crowd = Crowd(folder, environment, one_home=kind == "tinydb")
        alone = [crowd.run(1) for _ in range(ALONE)]
        alone_s = statistics.median(begun_s[0] for begun_s, *_ in alone)
        chosen_s = statistics.median(choosing_s[0] for _, choosing_s, *_ in alone)
        begun_s, _, conflicts, trials = crowd.run(submits)
        sizes = Counter(
            trial["batch_size"]["global"]
            if isinstance(trial.get("batch_size"), dict)
            else trial["global_batch_size"]
            for trial in trials
        )
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
    parser.add_argument(
        "--history", nargs="+", default=["tinydb", "postgresql", "server"], dest="kinds"
    )
    options = parser.parse_args()
    print(describe_machine())
    for kind in options.kinds:
        for submits in options.submits:
            measure(kind, submits)


if __name__ == "__main__":
    main()
