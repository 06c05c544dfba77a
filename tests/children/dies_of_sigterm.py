"""Reports once, never asks whether to stop, and trains on."""

import time

import zeusrun

zeusrun.current().report(epoch=1, accuracy=0.1)
while True:
    time.sleep(0.05)
