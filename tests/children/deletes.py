"""Misses its target in one epoch, then deletes a folder: its argument, from its run directory."""

import os
import pathlib
import shutil
import sys

import zeusrun

run = zeusrun.current()
for epoch in run.epochs(default=1):
    run.report(epoch=epoch, accuracy=0.1)
shutil.rmtree(pathlib.Path(os.environ["ZEUSRUN_RUN_DIR"], sys.argv[1]).resolve())
