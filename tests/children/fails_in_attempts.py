"""Fails in its first attempts, each time as the arguments say; then it reaches its target."""

import importlib
import os
import sys

import zeusrun

attempt = int(os.environ["ZEUSRUN_ATTEMPT"])
how = sys.argv[attempt] if attempt < len(sys.argv) else None
if how == "exit":
    sys.exit(7)
if how == "raise":
    raise ValueError(f"attempt {attempt}")
if how == "import":
    importlib.import_module("there_is_no_such_module")
zeusrun.current().report(epoch=1, accuracy=1.0)
