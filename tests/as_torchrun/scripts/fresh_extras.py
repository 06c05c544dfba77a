"""Where the process of a rank may differ: each line has a name."""

import ctypes
import os
import sys

before = set(sys.modules)
print("modules", sorted(before))
print("finders", sys.meta_path)
print("path hooks", len(sys.path_hooks))
print("orig_argv", sys.orig_argv)
print("command line", open("/proc/self/cmdline").read().replace("\0", " "))
print("descriptors", sorted(os.listdir("/proc/self/fd"), key=int)[:-1])
print("variables", sorted(name for name in os.environ))
death = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(death))
print("parent death signal", death.value)
