"""Ignores SIGTERM and goes on for ever."""

import signal
import time

import zeusrun

signal.signal(signal.SIGTERM, signal.SIG_IGN)
zeusrun.current().report(epoch=1, accuracy=0.1)
print("ready", flush=True)
while True:
    time.sleep(0.1)
