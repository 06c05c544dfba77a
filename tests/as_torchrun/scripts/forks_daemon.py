"""A process that detaches itself on purpose, as a server of logs does."""

import os
import sys
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        open("daemon.txt", "w").close()
        time.sleep(600)
    os._exit(0)
os.wait()
while not os.path.exists("daemon.txt"):
    time.sleep(0.01)
