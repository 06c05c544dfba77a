"""Death by a signal: the name, or how."""

import atexit
import ctypes
import os
import signal
import sys
import time

how = sys.argv[1]
atexit.register(print, "exit hook")
file = open("unflushed.txt", "w")
file.write("not flushed")
print("before")
if how == "segfault":
    ctypes.string_at(0)
elif how == "abort":
    os.abort()
elif how == "raise":
    raise KeyboardInterrupt
elif how == "subclass":

    class Stop(KeyboardInterrupt):
        pass

    raise Stop("told to stop")
elif how == "in_except":
    try:
        raise ValueError("first")
    except ValueError:
        raise KeyboardInterrupt
else:
    os.kill(os.getpid(), getattr(signal, how))
time.sleep(60)
