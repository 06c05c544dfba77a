"""What ``zeusrun report`` takes on a long history; it also makes up the example of the docs.

Targets for 1,000 trials with 100 power traces of 8 GPUs: 5 s, a page of 1 MB, 500 MB of memory.

``python benchmarks/report.py [--trials 1000] [--traces 100] [--repeats 5]`` measures one job.
``python benchmarks/report.py --jobs 201 --long 10000 --repeats 1`` measures many: one has 10,000
runs, each other one 10. The targets for them are 8 s of CPU time and a page of 1 MB.
``python benchmarks/report.py --example DIR`` writes a home with 48 made-up runs of one job, for
``ZEUSRUN_HOME=DIR zeusrun report``. Nothing in it was measured.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from made_up import GPUS, LIMIT_W, make_trials, settings_of
from timing import describe_machine

from zeusrun.energy.device import Health
from zeusrun.energy.monitor import COLUMNS, PowerRow
from zeusrun.history.tinydb.storage import empty_tables, encode_tables

if TYPE_CHECKING:
    from zeusrun.trial import Trial


def write_home(home: Path, trials: list[Trial], traces: int, hertz: float) -> None:
    """Write a history, the job file of the newest run, and the power of the newest runs."""
    job = trials[-1].job
    (home / "history").mkdir(parents=True, exist_ok=True)
    records = {str(n): trial.to_json() for n, trial in enumerate(trials, 1)}
    tables = {**empty_tables(), "trials": records}
    (home / "history" / f"{job}.json").write_bytes(encode_tables(tables))
    for folder in (home, home / "history"):
        folder.chmod(0o700)
    for trial in trials[len(trials) - traces :]:
        folder = Path(trial.run_dir)
        folder.mkdir(parents=True, mode=0o700)
        write_power(folder / "power.csv", trial, hertz)
    script = home / "train.py"
    script.write_text("# made up\n")
    Path(trials[-1].run_dir).mkdir(parents=True, exist_ok=True, mode=0o700)
    (Path(trials[-1].run_dir) / "job.yaml").write_text(settings_of(job, script))


def write_power(path: Path, trial: Trial, hertz: float) -> None:
    rng = random.Random(trial.trial)  # noqa: S311 - not for secrets
    startup_s = trial.startup_s or 0.0
    epoch_s = (trial.time_s or 1.0) / (trial.epochs or 1)
    usual_w = (trial.energy_j or 0.0) / (trial.time_s or 1.0) / GPUS
    hot = rng.random() < 0.4
    uuids = [
        f"GPU-{rng.getrandbits(32):08x}-0000-4000-8000-00000000000{gpu}" for gpu in range(GPUS)
    ]
    joules = dict.fromkeys(uuids, 0.0)
    lines = [f"{COLUMNS}\n"]
    for step in range(int(((trial.time_s or 1.0) + startup_s) * hertz)):
        t = step / hertz
        trains = t > startup_s
        evaluates = trains and (t - startup_s) % epoch_s > 0.9 * epoch_s
        heats = hot and trains and 0.55 < (t - startup_s) / (trial.time_s or 1.0) < 0.68
        level = 0.18 if not trains else 0.55 if evaluates else 0.9 if heats else 1.04
        for uuid in uuids:
            watts = min(LIMIT_W + 8, usual_w * (level + rng.gauss(0, 0.025)))
            joules[uuid] += watts / hertz
            reasons = ("hw_thermal_slowdown",) if heats else () if trains else ("gpu_idle",)
            health = Health(0.97 if trains else 0.0, 66.0, 1700.0, 2619.0, reasons)
            lines.append(PowerRow(t, uuid, watts, LIMIT_W, joules[uuid], health).to_line())
    path.write_text("".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--traces", type=int, default=100)
    parser.add_argument("--hertz", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--jobs", type=int, metavar="N")
    parser.add_argument("--long", type=int, default=10_000)
    parser.add_argument("--example", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    generator = random.Random(8)  # noqa: S311 - not for secrets
    if arguments.example is not None:
        home = arguments.example.absolute()
        write_home(home, make_trials(48, generator, home=home), 8, 2.0)
        print(f"ZEUSRUN_HOME={home} zeusrun report")
        return
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        if arguments.jobs is not None:
            for number in range(arguments.jobs):
                count = 10 if number else arguments.long
                trials = make_trials(count, generator, f"job-{number}", home=home)[:count]
                write_home(home, trials, 0, 0.0)
        else:
            trials = make_trials(arguments.trials, generator, home=home)[: arguments.trials]
            write_home(home, trials, arguments.traces, arguments.hertz)
        measure(home, arguments.repeats)


def measure(home: Path, repeats: int) -> None:
    page = home / "report.html"
    command = [sys.executable, "-m", "zeusrun", "report", "-o", str(page)]
    environment = {**os.environ, "ZEUSRUN_HOME": str(home)}
    rows = [path.stat().st_size for path in home.glob("runs/*/*/power.csv")]
    print(f"{describe_machine()}; {len(rows)} traces, {sum(rows) / 1e6:.1f} MB")
    seconds = []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - started)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    middle = statistics.median(seconds)
    print(
        f"time: {middle:.2f} s ({min(seconds):.2f} to {max(seconds):.2f}, {repeats} runs); "
        f"CPU {cpu_s / repeats:.2f} s"
    )
    print(f"page: {page.stat().st_size / 1e6:.2f} MB; memory: {used.ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
