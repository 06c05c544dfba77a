"""With batch size 16: reports an epoch, and runs out of memory once it is told to stop."""

import os
import sys
import time

import zeusrun

run = zeusrun.current()
run.should_stop()  # from here on SIGTERM does not end it
stop_file = os.path.join(os.environ["ZEUSRUN_RUN_DIR"], "stop")
time.sleep(0.5)  # the energy of an epoch is known once it was sampled
run.report(epoch=1, accuracy=0.1)
if run.global_batch_size(default=0) == 16:
    for _ in range(1200):
        if os.path.exists(stop_file):
            raise MemoryError("too little of it")
        time.sleep(0.05)
    sys.exit("it was not told to stop")
run.report(epoch=2, accuracy=1.0)
