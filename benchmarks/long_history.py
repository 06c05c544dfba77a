"""What a history of many trials costs: reading it, choosing from it, writing to it.

Targets for 10,000 trials of 20 epochs: ``zeusrun history`` in 0.5 s, ``zeusrun submit`` at most
0.5 s longer than ``torchrun``; the newest 1000 read in 60 ms, ``begin`` that sees them and
``finish`` in 120 ms. ``python benchmarks/long_history.py [--trials 10000] [--repeats 7]``
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from timing import describe_machine, interleave, run_seconds, show

from zeusrun.files.home import runs_directory
from zeusrun.history.tinydb.storage import empty_tables, encode_tables
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.launcher.rundir.layout import numbered_runs
from zeusrun.trial import CurvePoint, EnergySource, Outcome, Stage, Trial, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable

JOB = "digits"
LAST = 1000
EPOCHS = 20
SCRIPTS = Path(__file__).resolve().parent / "scripts"
RANDOM = random.Random(7)  # noqa: S311 - not for secrets


def draw_trial(recurrence: int) -> Trial:
    return Trial(
        trial=f"{JOB}-{recurrence}-1",
        job=JOB,
        recurrence=recurrence,
        attempt=1,
        global_batch_size=64,
        world_size=2,
        started_at="2025-06-01T12:00:00.000+00:00",
        metric="accuracy",
        run_dir=f"/home/someone/.local/state/zeusrun/runs/{JOB}/{JOB}-{recurrence}-1",
        stage=Stage.EXPLOIT,
        why="64 is expected to cost the least",
        mode="max",
        target=0.5,
        max_epochs=40,
        eta_knob=0.5,
        default_batch_size=64,
        uuid=f"{recurrence:032x}",
    )


def draw_outcome() -> Outcome:
    draw = RANDOM.random
    points = (CurvePoint(n, 1e3 * draw(), 1e5 * draw(), draw()) for n in range(1, EPOCHS + 1))
    time_s, energy_j = 1e3 * (1 + 0.1 * draw()), 1e5 * (1 + 0.1 * draw())
    return Outcome(
        TrialStatus.REACHED,
        "accuracy 0.5",
        "2025-06-01T13:00:00Z",
        startup_s=3.0,
        time_s=time_s,
        energy_j=energy_j,
        energy_source=EnergySource.ESTIMATED,
        max_power_w=200.0,
        cost_j=0.5 * energy_j + 100.0 * time_s,
        epochs=RANDOM.randint(EPOCHS // 2, EPOCHS),
        steps=1000,
        best_metric=0.5,
        curve=tuple(points),
    )


def timed(work: Callable[[], object]) -> Callable[[], float]:
    def run() -> float:
        started = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - started)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    print(f"{describe_machine()}; {arguments.trials} trials of {EPOCHS} epochs")
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        directory = home / "history"
        directory.mkdir()
        numbers = range(1, arguments.trials + 1)
        trials = {str(n): draw_trial(n).finish(draw_outcome()).to_json() for n in numbers}
        # One file, as versions before wrote it.
        (directory / f"{JOB}.json").write_bytes(encode_tables({**empty_tables(), "trials": trials}))
        for number in numbers:
            (runs_directory(home, JOB) / f"{JOB}-{number}-1").mkdir(parents=True)

        def submit(history: TinyDBHistory) -> None:
            newest, version = history.snapshot(JOB, LAST)
            trial = history.begin(draw_trial(newest[-1].recurrence + 1), after=version)
            history.finish(trial.trial, draw_outcome())

        def fresh() -> TinyDBHistory:  # as a process of its own, which has read nothing before
            return TinyDBHistory(directory)

        first_ms = timed(lambda: submit(fresh()))()
        print(f"\nthe first write, which moves them into volumes: {first_ms:.0f} ms")
        known = fresh()
        known.trials(JOB, LAST)
        runs = {
            "jobs()": lambda: fresh().jobs(),
            f"trials(last={LAST})": lambda: fresh().trials(JOB, LAST),
            "trials()": lambda: fresh().trials(JOB),
            "find() of an old trial": lambda: fresh().find(f"{JOB}-7-1"),
            f"snapshot(last={LAST}) + begin() + finish()": lambda: submit(fresh()),
            "the same, having read before": lambda: submit(known),
            "snapshot(last=0)": lambda: fresh().snapshot(JOB, 0),
            "numbered_runs()": lambda: numbered_runs(home, JOB),
        }
        figures = interleave({name: timed(run) for name, run in runs.items()}, arguments.repeats)
        show(figures, "ms")
        commands(home, Path(name), arguments.repeats)


def commands(home: Path, folder: Path, repeats: int) -> None:
    """Time whole commands over this history and over one of ten trials, beside bare torchrun."""
    few = folder / "few"
    for number in range(1, 11):
        history = TinyDBHistory(few / "history")
        history.begin(draw_trial(number), after=history.snapshot(JOB, 0).version)
        history.finish(f"{JOB}-{number}-1", draw_outcome())
    job = folder / "job.yaml"
    script = SCRIPTS / "reports_once.py"
    job.write_text(
        f"name: {JOB}\nscript: {script}\nobjective: {{metric: accuracy, target: 0.5}}\n"
        "early_stop: {cost_factor: null}\nbatch_size: {candidates: [32, 64, 128]}\n"
    )
    environments = {
        label: {**os.environ, "ZEUSRUN_HOME": str(place)}
        for label, place in (("10 trials", few), ("this history", home))
    }
    zeusrun = [sys.executable, "-m", "zeusrun"]
    bare = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(script)]
    runs = {"torchrun": partial(run_seconds, bare)}
    for label, env in environments.items():
        runs[f"history, {label}"] = partial(run_seconds, [*zeusrun, "history", JOB], env)
        submit = [*zeusrun, "submit", str(job), "--quiet", "--batch-size", "64"]
        runs[f"submit, {label}"] = partial(run_seconds, submit, env)
        dry_run = [*zeusrun, "submit", str(job), "--dry-run"]
        runs[f"submit --dry-run, {label}"] = partial(run_seconds, dry_run, env)
    print(f"\nwhole commands, {repeats} runs each, interleaved")
    show(interleave(runs, repeats), "s")


if __name__ == "__main__":
    main()
