"""Counts epochs on two ranks of which one alone learns, in epoch 3, that training should end.

Its argument says how: ``file`` (the other rank's run directory never shows the stop file),
``signal`` (SIGTERM to rank 1 only) or ``target`` (rank 0 reports it). A second one is how long
an epoch lasts, in seconds.
"""

import os
import signal
import sys
import time

from torch import distributed

how, rank = sys.argv[1], int(os.environ["RANK"])
epoch_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
stop_file = os.path.join(os.environ["ZEUSRUN_RUN_DIR"], "stop")
if how == "file" and rank == 1:
    os.environ["ZEUSRUN_RUN_DIR"] = "/nowhere"

import zeusrun  # noqa: E402 - it reads the environment

distributed.init_process_group("gloo")
run = zeusrun.current()
for epoch in run.epochs(default=6):
    print("epoch", epoch)
    time.sleep(epoch_s)
    run.report(accuracy=float(how == "target" and epoch == 3))
    if epoch == 3 and how == "file" and rank == 0:
        open(stop_file, "w").close()
    if epoch == 3 and how == "signal" and rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
print("saved", run.should_stop())
distributed.destroy_process_group()
