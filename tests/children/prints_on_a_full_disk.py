"""Fills the disk of its run directory, and prints; reports in the end, or fails to save."""

import contextlib
import os
import sys

import zeusrun

run = zeusrun.current()
run.report(epoch=1, accuracy=0.3)
ballast = os.path.join(os.environ["ZEUSRUN_RUN_DIR"], "ballast")
with open(ballast, "wb", buffering=0) as file:
    size = 1 << 20
    while size:
        with contextlib.suppress(OSError):
            file.write(b"x" * size)
            continue
        size //= 2
for number in range(2000):
    print(f"line {number}")
    print(f"warning {number}", file=sys.stderr)
if "--saves" in sys.argv:
    with open(os.path.join(os.environ["ZEUSRUN_RUN_DIR"], "model"), "wb") as file:
        file.write(b"x" * 100_000)
os.unlink(ballast)
print("there is space again")
run.report(epoch=2, accuracy=0.6)
