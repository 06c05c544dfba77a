"""Has a SIGTERM handler of its own that ends the script well, as if it were done."""

import signal
import sys
import time

import zeusrun

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
zeusrun.current().report(epoch=1, accuracy=0.1)
while True:
    time.sleep(0.05)
