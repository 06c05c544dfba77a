"""Hangs in its second epoch, in C and with the interpreter's lock held."""

import ctypes
import time

import torch

import zeusrun


def hang():
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_init(mutex, None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
run = zeusrun.current()
for epoch in run.epochs(default=3):
    for step in range(20):
        if (epoch, step) == (2, 10):
            hang()
        weight.grad = torch.ones(1)
        optimizer.step()
        time.sleep(0.01)
    run.report(epoch=epoch, accuracy=epoch / 3)
