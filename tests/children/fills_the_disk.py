"""Reaches the target and leaves not one free byte beside its run directory."""

import os

import zeusrun

run = zeusrun.current()
run.report(epoch=1, accuracy=1.0)
with open(os.path.join(os.environ["ZEUSRUN_RUN_DIR"], "ballast"), "wb", buffering=0) as file:
    size = 1 << 20
    while size:
        try:
            file.write(b"x" * size)
        except OSError:
            size //= 2
