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
import math
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from uuid import uuid4

from timing import describe_machine

from zeusrun.cost import cost_j
from zeusrun.energy.device import Health
from zeusrun.energy.monitor import COLUMNS, PowerRow
from zeusrun.history.tinydb.storage import empty_tables, encode_tables
from zeusrun.trial import CurvePoint, EnergySource, Outcome, PowerPoint, Stage, Trial, TrialStatus
from zeusrun.trial.values import NoisePoint

JOB = "forecast"
SIZES = (64, 128, 256, 512, 1024)
DEFAULT, BEST = 128, 512
GPUS, MAX_W, LIMIT_W = 8, 700.0, 500.0
TARGET, MAX_EPOCHS, ETA = 0.92, 30, 0.5
BEGAN = datetime(2026, 3, 2, 1, 0, tzinfo=timezone.utc)
GRAMS, EUROS = 381.0, 0.247  # of a kWh; made up
EPOCHS = {64: 11.0, 128: 11.4, 256: 12.3, 512: 14.0, 1024: 21.0}
EPOCH_S = {64: 54.0, 128: 38.0, 256: 29.0, 512: 23.5, 1024: 20.0}
WATTS = {64: 330.0, 128: 390.0, 256: 440.0, 512: 448.0, 1024: 470.0}
FIRST = (128, 256, 128, 64, 512, 1024, 256, 128, 512, 64, 256, 512, 128)
CRASH = "RuntimeError: DataLoader worker (pid 4127) is killed by signal: Killed"


def make_trials(count: int, home: Path, generator: random.Random, job: str = JOB) -> list[Trial]:
    """Make up ``count`` trials of a nightly job, oldest first."""
    trials: list[Trial] = []
    recurrence = 0
    while len(trials) < count:
        recurrence += 1
        size = FIRST[recurrence - 1] if recurrence <= len(FIRST) else BEST
        if recurrence > len(FIRST) and generator.random() < 0.1:
            size = generator.choice(SIZES)
        attempt = 1
        while True:
            began = BEGAN + timedelta(days=recurrence, minutes=45 * (attempt - 1))
            trial = make_trial((recurrence, attempt), size, began, home, generator, job)
            trials.append(trial)
            if trial.status is TrialStatus.REACHED or len(trials) >= count:
                break
            attempt, size = attempt + 1, BEST if size != BEST else 256
    return trials


def make_noise(size: int, epochs: int, needs: float, rng: random.Random) -> tuple[NoisePoint, ...]:
    """Make up a noise scale that rises; small batch sizes tell only that it is at least so much."""
    points = []
    for epoch in range(1, epochs + 1):
        at = epoch - 0.4
        noise = 120 * math.exp(3.4 * min(1, at / needs) ** 0.7)
        width = 1.1 + 0.35 * noise / (12 * size)
        found = noise * width ** rng.gauss(0, 0.4)
        low = found / width
        value, high = (found, found * width**1.2) if noise < 12 * size else (None, None)
        points.append(NoisePoint(round(at * 51200), at, low, value, high))
    return tuple(points)


def make_trial(  # noqa: PLR0917 - made up here alone
    number: tuple[int, int], size: int, began: datetime, home: Path, rng: random.Random, job: str
) -> Trial:
    recurrence, attempt = number
    name = f"{job}-{recurrence}-{attempt}"
    bad = rng.random()
    needs = EPOCHS[size] * math.exp(rng.gauss(0, 0.07))
    status = TrialStatus.REACHED
    if size == 1024 and bad < 0.6:
        status = TrialStatus.STOPPED
    elif bad > 0.975:
        status = TrialStatus.FAILED
    share = {TrialStatus.STOPPED: 0.7, TrialStatus.FAILED: rng.random()}.get(status, 1.0)
    epochs = max(1, round(needs * share))
    epoch_s = EPOCH_S[size] * math.exp(rng.gauss(0, 0.02))
    watts = GPUS * WATTS[size] * (1 + rng.gauss(0, 0.01))
    curve = []
    for epoch in range(1, epochs + 1):
        far = epoch / needs
        value = TARGET + 0.004 - 0.5 * (math.exp(-4.2 * far) - math.exp(-4.2)) + rng.gauss(0, 0.004)
        value = min(value, TARGET - 0.003) if epoch < needs - 0.5 else max(value, TARGET + 0.0005)
        curve.append(CurvePoint(epoch, epoch * epoch_s, epoch * epoch_s * watts, round(value, 4)))
    if status is not TrialStatus.REACHED:
        curve = [point._replace(value=min(point.value or 0.0, TARGET - 0.004)) for point in curve]
    time_s, energy_j = curve[-1].time_s, curve[-1].energy_j or 0.0
    reason = {
        TrialStatus.REACHED: f"val_accuracy {curve[-1].value:.4g} reached {TARGET:g}",
        TrialStatus.STOPPED: "at this pace it would cost more than twice the cheapest run",
        TrialStatus.FAILED: CRASH,
    }[status]
    exploring = recurrence <= len(FIRST) or size != BEST
    profiled = exploring and attempt == 1
    warning = (
        "the training has stalled: no optimizer step for 48 s, the longest pause before was 2.1 s; "
        "all ranks are in torch/utils/data/dataloader.py:1481 (_try_get_data)"
    )
    trial = Trial(
        trial=name,
        job=job,
        recurrence=recurrence,
        attempt=attempt,
        global_batch_size=size,
        power_limit_w=LIMIT_W,
        world_size=GPUS,
        gpu_model="NVIDIA H100 80GB HBM3",
        gpu_count=GPUS,
        started_at=began.isoformat(timespec="milliseconds"),
        metric="val_accuracy",
        run_dir=str(home / "runs" / job / name),
        stage=Stage.EXPLORE if exploring else Stage.EXPLOIT,
        why=f"{size} is made up",
        mode="max",
        target=TARGET,
        max_epochs=MAX_EPOCHS,
        eta_knob=ETA,
        default_batch_size=DEFAULT,
        uuid=uuid4().hex,
    )
    return trial.finish(
        Outcome(
            status=status,
            reason=reason,
            finished_at=(began + timedelta(seconds=time_s + 30)).isoformat(),
            startup_s=22 + rng.random() * 6,
            time_s=time_s,
            energy_j=energy_j,
            energy_source=EnergySource.COUNTER,
            max_power_w=GPUS * MAX_W,
            cost_j=cost_j(energy_j, GPUS * MAX_W, time_s, ETA),
            epochs=epochs,
            steps=epochs * 51200 // size,
            best_metric=max(point.value or 0.0 for point in curve),
            curve=tuple(curve),
            power_profile=(PowerPoint(LIMIT_W, 51200 / size / epoch_s, watts),),
            profiling_cost_j=0.02 * energy_j if profiled else None,
            shared=False,
            noise_curve=make_noise(size, epochs, needs, rng),
            gradients_of="ranks",
            price=energy_j / 3.6e6 * EUROS * 1.15,
            currency="EUR",
            carbon_g=energy_j / 3.6e6 * GRAMS * 1.15,
            pue=1.15,
            warnings=(warning,) if rng.random() < 0.03 else (),
        )
    )


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
    (Path(trials[-1].run_dir) / "job.yaml").write_text(
        f"name: {job}\nscript: {script}\nlaunch: {{nproc_per_node: {GPUS}}}\n"
        f"objective: {{metric: val_accuracy, target: {TARGET}, max_epochs: {MAX_EPOCHS}, "
        f"eta_knob: {ETA}}}\n"
        f"batch_size: {{default: {DEFAULT}, candidates: {list(SIZES)}}}\n"
    )


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
        write_home(home, make_trials(48, home, generator), 8, 2.0)
        print(f"ZEUSRUN_HOME={home} zeusrun report")
        return
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        if arguments.jobs is not None:
            for number in range(arguments.jobs):
                count = 10 if number else arguments.long
                write_home(home, make_trials(count, home, generator, f"job-{number}"), 0, 0.0)
        else:
            trials = make_trials(arguments.trials, home, generator)
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
