"""Starts a daemon every 20 ms, by a double fork, in a session of its own; trains for ever."""

import os
import time

import zeusrun

if os.environ["RANK"] == "0":
    zeusrun.current().report(epoch=1, accuracy=0.1)
while True:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "600"])
        os._exit(0)
    os.wait()
    time.sleep(0.02)
