"""Daemon threads that compute, print and wait when the interpreter ends."""

import sys
import threading
import time

started = threading.Barrier(4)


def spin():
    started.wait()
    while True:
        sum(range(1000))


def chat():
    print("still here")
    started.wait()
    while True:
        print("still here")
        time.sleep(0.001)


def wait():
    started.wait()
    threading.Event().wait()


for target in (spin, chat, wait):
    threading.Thread(target=target, daemon=True).start()
started.wait()
sys.exit(3)
