"""Takes steps of 10 ms and an evaluation of a second after each epoch."""

import time

from step_clock import count_steps

import zeusrun

take_step = count_steps()
run = zeusrun.current()
for epoch in run.epochs(default=3):
    for _ in range(20):
        take_step()
        time.sleep(0.01)
    time.sleep(1.0)
    run.report(epoch=epoch, accuracy=epoch / 3)
