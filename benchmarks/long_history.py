"""What a history of many trials costs: reading it, choosing from it, writing to it.

Targets for 10,000 trials of 20 epochs: the newest 1000 read in 60 ms, ``begin`` that sees them and
``finish`` in 120 ms. ``python benchmarks/long_history.py [--trials 10000] [--repeats 7]``
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from timing import describe_machine, interleave, show

from zeusrun.history.schema import empty_tables, encode_tables
from zeusrun.history.tinydb import TinyDBHistory
from zeusrun.launcher.paths import highest_recurrence, runs_directory
from zeusrun.trial import CurvePoint, Outcome, Stage, Trial, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable

JOB = "digits"
LAST = 1000
EPOCHS = 20
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
        metric="val_accuracy",
        run_dir=f"/home/someone/.local/state/zeusrun/runs/{JOB}/{JOB}-{recurrence}-1",
        stage=Stage.EXPLOIT,
        why="64 is expected to cost the least",
        mode="max",
        target=0.95,
        max_epochs=40,
        eta_knob=0.5,
    )


def draw_outcome() -> Outcome:
    draw = RANDOM.random
    points = (CurvePoint(n, 1e3 * draw(), 1e5 * draw(), draw()) for n in range(1, EPOCHS + 1))
    return Outcome(TrialStatus.REACHED, "reached", "2025-06-01T13:00:00Z", curve=tuple(points))


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
            trial = history.begin(
                JOB, lambda newest: draw_trial(newest[-1].recurrence + 1), last=LAST
            )
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
            f"begin(last={LAST}) + finish()": lambda: submit(fresh()),
            "the same, having read before": lambda: submit(known),
            "highest_recurrence()": lambda: highest_recurrence(home, JOB),
        }
        figures = interleave({name: timed(run) for name, run in runs.items()}, arguments.repeats)
        show(figures, "ms")


if __name__ == "__main__":
    main()
