"""What cron's look at the schedules takes every minute, and ``schedule list``: one job, and fifty.

``python benchmarks/schedule_tick.py [--repeats 15]``
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from timing import describe_machine, interleave, run_seconds, show

SCHEDULE = [sys.executable, "-m", "zeusrun", "schedule"]
JOB = """
name: {name}
script: train.py
objective: {{metric: accuracy, target: 0.9}}
batch_size: {{candidates: [32], default: 32}}
"""


def prepare(folder: Path, jobs: int) -> dict[str, str]:
    """Schedule so many jobs on a night that does not come soon; return the environment."""
    environment = {**os.environ, "ZEUSRUN_HOME": str(folder / f"home{jobs}")}
    (folder / "train.py").touch()
    for number in range(jobs):
        path = folder / f"job{number}.yaml"
        path.write_text(JOB.format(name=f"job{number}"))
        add = [*SCHEDULE, "add", str(path), f"{number} 2 29 2 *", "--no-cron"]
        run_seconds(add, environment)
    return environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    print(describe_machine())
    with tempfile.TemporaryDirectory() as name:
        homes = {jobs: prepare(Path(name), jobs) for jobs in (1, 50)}
        figures = interleave(
            {
                f"schedule {verb}, {jobs} job(s)": partial(run_seconds, [*SCHEDULE, verb], env)
                for verb in ("tick", "list")
                for jobs, env in homes.items()
            },
            repeats,
        )
    print(f"{repeats} runs each, interleaved")
    show(figures, "s")


if __name__ == "__main__":
    main()
