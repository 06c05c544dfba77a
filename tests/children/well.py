"""Trains nothing, well: reports an accuracy that rises by ``--gain`` an epoch, on every rank."""

import argparse
import os
import time

import zeusrun

parser = argparse.ArgumentParser()
parser.add_argument("--gain", type=float, default=0.3)
parser.add_argument("--epoch-s", type=float, default=0.05)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--metric", default="accuracy")
parser.add_argument("--see", action="store_true", help="print what zeusrun told this rank")
arguments = parser.parse_args()

run = zeusrun.current()
if arguments.see:
    for name in sorted(os.environ):
        if name.startswith("ZEUSRUN_"):
            print(f"{name}={os.environ[name]}")
for epoch in run.epochs(default=arguments.epochs):
    busy_until_s = time.process_time() + 0.012  # a tick of 10 ms, or no energy could be estimated
    while time.process_time() < busy_until_s:
        pass
    time.sleep(arguments.epoch_s)
    print(f"epoch {epoch} of rank {run.rank}")
    run.report(epoch=epoch, **{arguments.metric: arguments.gain * epoch})
print("the end")
