"""Rank 1 runs out of memory; rank 0 asks for stops, then waits in C where no handler runs."""

import ctypes
import os

import zeusrun

zeusrun.current().should_stop()
if os.environ["RANK"] == "1":
    raise MemoryError("too little of it")
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
libc.pthread_mutex_init(mutex, None)
libc.pthread_mutex_lock(mutex)
libc.pthread_mutex_lock(mutex)
