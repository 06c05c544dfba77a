"""Exit hooks: their order, one that fails, one that adds another, one that exits."""

import atexit
import sys
import threading


def fails():
    raise ValueError("in a hook")


def adds():
    print("adds")
    atexit.register(print, "added")


def starts_a_thread():
    try:
        thread = threading.Thread(target=print, args=["thread of a hook"])
        thread.start()
        thread.join()
    except RuntimeError as error:
        print(error)


def goes_on_in_a_thread():
    try:
        threading.Thread(target=open("late.txt", "w").write, args=["late"]).start()
    except RuntimeError as error:
        print(error)


atexit.register(print, "first")
atexit.register(fails)
atexit.register(sys.exit, 5)
atexit.register(adds)
atexit.register(starts_a_thread)
atexit.register(goes_on_in_a_thread)
gone = atexit.register(print, "never") and print
atexit.unregister(gone) if "unregister" in sys.argv else None
print(atexit._ncallbacks() - len(sys.argv))
