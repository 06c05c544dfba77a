"""What a C library holds back until the process ends: printf to a file, and its own exit hooks."""

import atexit
import ctypes
import sys

libc = ctypes.CDLL(None)
libc.printf(b"printed by C without an end of line")
CALLBACK = ctypes.CFUNCTYPE(None)
atexit.register(print, "hook of Python")
file = libc.fopen
file.restype = ctypes.c_void_p
handle = ctypes.c_void_p(file(b"c.txt", b"w"))
libc.fputs(b"a line of C", handle)
if len(sys.argv) > 1:
    sys.exit(int(sys.argv[1]))
