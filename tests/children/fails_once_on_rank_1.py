"""Raises on rank 1 in its first life, after an epoch that all share; then reaches the target."""

import os

import lean_torch  # noqa: F401
from torch import distributed

import zeusrun

distributed.init_process_group("gloo")
run = zeusrun.current()
for epoch in run.epochs(default=3):
    if (epoch, run.rank, os.environ["TORCHELASTIC_RESTART_COUNT"]) == (2, 1, "0"):
        raise ValueError("the first life")
    run.report(epoch=epoch, accuracy=0.2 * epoch)
