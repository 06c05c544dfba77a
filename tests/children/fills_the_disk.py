"""Reaches the target and leaves not one free byte beside its run directory."""

import contextlib
import os

import zeusrun

run = zeusrun.current()
run.report(epoch=1, accuracy=1.0)
with open(os.path.join(os.environ["ZEUSRUN_RUN_DIR"], "ballast"), "wb", buffering=0) as file:
    size = 1 << 20
    while size:
        with contextlib.suppress(OSError):
            file.write(b"x" * size)
            continue
        size //= 2
