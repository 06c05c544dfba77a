"""A profiler that runs until the end sees the script, and nobody else."""

import atexit
import sys

seen = []


def tell():
    sys.setprofile(None)
    print(sorted(set(seen)))


def profile(frame, event, argument):
    if event in {"call", "return"}:
        seen.append((frame.f_code.co_filename, frame.f_code.co_name))


def work():
    return 1


atexit.register(tell)
sys.setprofile(profile)
work()
