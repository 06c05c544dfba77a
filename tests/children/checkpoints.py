"""Trains with checkpoints: goes on where the last part left off, and saves when told to stop.

Each epoch lasts ``--epoch-s``. The target is reached in epoch ``--reaches``, or once the file
``--reaches-with`` exists; with ``--again``, only after a preemption. In its first life it takes
``--lost-s`` in epoch ``--crashes-in``, and raises. With ``--forgets`` it saves nothing.
"""

import argparse
import json
import os
import time
from pathlib import Path

import zeusrun

parser = argparse.ArgumentParser()
parser.add_argument("--epoch-s", type=float, default=0.3)
parser.add_argument("--reaches", type=int, default=10**9)
parser.add_argument("--again", action="store_true")
parser.add_argument("--reaches-with", default="")
parser.add_argument("--crashes-in", type=int, default=0)
parser.add_argument("--lost-s", type=float, default=2.0)
parser.add_argument("--forgets", action="store_true")
arguments = parser.parse_args()

run = zeusrun.current()
path = run.checkpoint_dir / "last.json"
may_reach = Path(os.environ["ZEUSRUN_RUN_DIR"], "part1").exists() or not arguments.again
done = json.loads(path.read_text())["epoch"] if path.exists() else 0
print(f"begins after epoch {done} with {os.environ['ZEUSRUN_BATCH_SIZE']}", flush=True)
for epoch in run.epochs(default=100, done=done):
    time.sleep(arguments.epoch_s)
    if epoch == arguments.crashes_in and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(arguments.lost_s)
        raise ValueError("the first life")
    reached = (epoch >= arguments.reaches and may_reach) or os.path.exists(arguments.reaches_with)
    run.report(epoch=epoch, accuracy=0.5 if reached else epoch / 10000)
    done = epoch
    if run.rank == 0 and not arguments.forgets:
        path.write_text(json.dumps({"epoch": done}))
