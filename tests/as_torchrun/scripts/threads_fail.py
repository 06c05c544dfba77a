"""What ends a thread, and who hears of it: default | hook | exit | group."""

import sys
import threading


def fail():
    def inner():
        raise ValueError("in a thread: ä")

    inner()


if sys.argv[1] == "hook":
    threading.excepthook = lambda args: print("hook", args.exc_type.__name__, args.thread.name)
target = {"exit": lambda: sys.exit(7)}.get(sys.argv[1], fail)
thread = threading.Thread(target=target)
thread.start()
thread.join()
print("main goes on")
