"""Puts links in the place of its run's files in its first life, and trains well in its second.

The names come from ``PLANTED``; each link leads to a file of that name under ``VICTIMS``.
"""

import os
import pathlib
import sys

import zeusrun

run_dir, victims = pathlib.Path(os.environ["ZEUSRUN_RUN_DIR"]), pathlib.Path(os.environ["VICTIMS"])
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    for name in os.environ["PLANTED"].split(","):
        path = run_dir / name
        path.unlink(missing_ok=True)
        path.symlink_to(victims / name)
    sys.exit(1)
run = zeusrun.current()
for epoch in run.epochs(default=5):
    run.report(epoch=epoch, accuracy=0.9)
