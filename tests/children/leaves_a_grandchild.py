"""Reaches the target, and leaves a process behind that has left its session and its parent."""

import os
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
zeusrun.current().report(epoch=1, accuracy=1.0)
