"""Reaches the target, and leaves a process behind that has left its session and its parent.

With ``--stay`` it trains on for ever instead.
"""

import os
import sys
import time

import zeusrun

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(os.path.join(os.environ["ZEUSRUN_RUN_DIR"], "grandchild"), "w") as file:
            file.write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
os.wait()
while not os.path.exists(os.path.join(os.environ["ZEUSRUN_RUN_DIR"], "grandchild")):
    time.sleep(0.01)
stays = "--stay" in sys.argv
zeusrun.current().report(epoch=1, accuracy=0.1 if stays else 1.0)
while stays:
    time.sleep(0.1)
