"""Start-up of ``zeusrun --help`` and of ``history`` over 1,000 trials, against ``python -c pass``.

Target: well under half a second each. ``python benchmarks/startup.py [--repeats 15]``
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from timing import describe_machine, interleave, run_seconds, show

from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.trial import CurvePoint, EnergySource, Outcome, Stage, Trial, TrialStatus

TRIALS, EPOCHS = 1000, 40


def fill_history(home: Path, job: str = "nightly", trials: int = TRIALS) -> None:
    """Write finished trials of one job, each with a curve of 40 epochs."""
    first_id = f"{job}-1-1"
    curve = tuple(
        CurvePoint(epoch, epoch * 1.25, epoch * 310.5, 1 - 1 / epoch)
        for epoch in range(1, EPOCHS + 1)
    )
    outcome = Outcome(
        TrialStatus.REACHED, "accuracy 0.95 in epoch 40", "2026-01-01T00:01:00.000+00:00",
        startup_s=2.5, time_s=50.0, energy_j=12420.0, energy_source=EnergySource.COUNTER,
        max_power_w=300.0, cost_j=13710.0, epochs=EPOCHS, steps=4000, best_metric=0.975,
        curve=curve,
    )  # fmt: skip
    dispatched = Trial(
        trial=first_id, job=job, recurrence=1, attempt=1, global_batch_size=128,
        learning_rate=0.1, world_size=2, started_at="2026-01-01T00:00:00.000+00:00",
        metric="accuracy", run_dir=str(home / "runs" / job / first_id), stage=Stage.EXPLOIT,
        why="cheapest", mode="max", target=0.95, max_epochs=EPOCHS, eta_knob=0.5,
        default_batch_size=64, uuid=f"{1:032x}",
    )  # fmt: skip
    history = TinyDBHistory(home / "history")
    history.begin(dispatched, after=history.snapshot(job, 0).version)
    history.finish(dispatched.trial, outcome)
    # One write for the rest, through the store's own records: 2,000 fsyncs would be waited for.
    path = home / "history" / f"{job}.json"
    text = path.read_text()
    tables = json.loads(text)
    (name,) = [name for name, table in tables.items() if first_id in json.dumps(table)]
    (first,) = tables[name].values()
    for number in range(2, trials + 1):
        record = json.loads(json.dumps(first).replace(first_id, f"{job}-{number}-1"))
        tables[name][str(number)] = {**record, "recurrence": number, "uuid": f"{number:032x}"}
    path.write_text(json.dumps(tables))
    if len(history.trials(job)) != trials:
        raise SystemExit("the history was not filled")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    print(describe_machine())
    with tempfile.TemporaryDirectory() as name:
        fill_history(Path(name))
        env = {**os.environ, "ZEUSRUN_HOME": name}
        zeusrun = [sys.executable, "-m", "zeusrun"]
        figures = interleave(
            {
                "python -c pass": partial(run_seconds, [sys.executable, "-c", "pass"], env),
                "zeusrun --help": partial(run_seconds, [*zeusrun, "--help"], env),
                "zeusrun history": partial(run_seconds, [*zeusrun, "history"], env),
                "zeusrun history --json": partial(
                    run_seconds, [*zeusrun, "history", "--json"], env
                ),
            },
            repeats,
        )
    print(f"{TRIALS} trials of {EPOCHS} epochs, {repeats} runs each, interleaved")
    show(figures, "s")


if __name__ == "__main__":
    main()
