"""Leaves not one free byte beside its run directory, and reaches the target, before or after.

Told so, it prints on the full disk, or saves there; then it makes space and reports.
"""

import contextlib
import os
import sys

import zeusrun

run = zeusrun.current()
run.report(epoch=1, accuracy=0.3 if sys.argv[1:] else 1.0)
folder = os.environ["ZEUSRUN_RUN_DIR"]
with open(os.path.join(folder, "ballast"), "wb", buffering=0) as file:
    size = 1 << 20
    while size:
        with contextlib.suppress(OSError):
            file.write(b"x" * size)
            continue
        size //= 2
if sys.argv[1:]:
    for number in range(2000):
        print(f"line {number}")
        print(f"warning {number}", file=sys.stderr)
    if "--saves" in sys.argv:
        with open(os.path.join(folder, "model"), "wb") as file:
            file.write(b"x" * 100_000)
    os.unlink(os.path.join(folder, "ballast"))
    print("the last warning", file=sys.stderr)
    print("there is space again")
    run.report(epoch=2, accuracy=0.6)
