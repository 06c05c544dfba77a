"""Finishes its training, then aborts while the interpreter shuts down."""

import atexit
import os

import zeusrun

atexit.register(os.abort)
for epoch in zeusrun.current().epochs(default=3):
    zeusrun.current().report(epoch=epoch, accuracy=1.0)
