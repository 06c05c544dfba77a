"""Trains until it is told to stop, and has no room for its checkpoint."""

import errno
import time

import zeusrun

run = zeusrun.current()
for epoch in run.epochs(default=1000):
    time.sleep(0.05)
    run.report(epoch=epoch, accuracy=0.01)
raise OSError(errno.ENOSPC, "No space left on device")
