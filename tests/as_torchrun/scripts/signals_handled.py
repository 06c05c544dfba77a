"""Handlers that the script installs, and what interrupts what."""

import os
import signal
import sys
import time


def handler(number, frame):
    print("got", signal.Signals(number).name, "in", frame.f_code.co_name)


for name in ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGCHLD"):
    signal.signal(getattr(signal, name), handler)
for name in ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT"):
    os.kill(os.getpid(), getattr(signal, name))


class Late(Exception):
    pass


def alarm(number, frame):
    raise Late


signal.signal(signal.SIGALRM, alarm)
signal.setitimer(signal.ITIMER_REAL, 0.02)
try:
    time.sleep(60)
except Late:
    print("late")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
os.kill(os.getpid(), signal.SIGTERM)
