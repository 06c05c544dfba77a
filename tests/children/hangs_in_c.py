"""Hangs in its second epoch, in C and with the interpreter's lock held; ``--once``: in no restart."""

import ctypes
import os
import sys
import time

from step_clock import count_steps

import zeusrun


def hang():
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_init(mutex, None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


goes_on = "--once" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
take_step = count_steps()
run = zeusrun.current()
for epoch in run.epochs(default=3):
    for step in range(20):
        if (epoch, step) == (2, 10) and not goes_on:
            hang()
        take_step()
        time.sleep(0.01)
    run.report(epoch=epoch, accuracy=epoch / 3)
