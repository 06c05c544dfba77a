"""Takes an optimizer step about every 10 ms, 20 an epoch, and reaches its target in epoch 2.

With ``--until``, that epoch lasts until a file exists.

With the batch size of ``--endless``, its first epoch lasts until zeusrun stops it, and 60 steps
longer.
"""

import argparse
import os
import time

from step_clock import count_steps

import zeusrun

parser = argparse.ArgumentParser()
parser.add_argument("--endless", type=int)
parser.add_argument("--until", default="/")
arguments = parser.parse_args()
take_step = count_steps()


def take_steps(number):
    for _ in range(number):
        take_step()
        time.sleep(0.01)


run = zeusrun.current()
stop_file = os.path.join(os.environ["ZEUSRUN_RUN_DIR"], "stop")
for epoch in run.epochs(default=3):
    take_steps(20)
    if run.global_batch_size(default=0) == arguments.endless:
        while not os.path.exists(stop_file):
            take_steps(1)
        take_steps(60)
    while epoch == 2 and not os.path.exists(arguments.until):
        take_steps(1)
    run.report(epoch=epoch, accuracy=0.3 * epoch)
