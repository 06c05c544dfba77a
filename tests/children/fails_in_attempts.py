"""Fails in its first attempts, each time as the arguments say; then it reaches its target."""

import importlib
import os
import sys
import time

import zeusrun

attempt = int(os.environ["ZEUSRUN_ATTEMPT"])
how = sys.argv[attempt] if attempt < len(sys.argv) else None
if how == "exit":
    sys.exit(7)
if how == "raise":
    raise ValueError(f"attempt {attempt}")
if how == "import":
    importlib.import_module("there_is_no_such_module")
run = zeusrun.current()
if how == "train":  # until it is told to stop; when it goes on, it exits
    begun = run.checkpoint_dir / "begun"
    if begun.exists():
        sys.exit(7)
    begun.touch()
    for epoch in run.epochs(default=100):
        time.sleep(0.2)
        run.report(epoch=epoch, accuracy=0.0)
    sys.exit(0)
run.report(epoch=1, accuracy=1.0)
